"""Every parity metric by the name that markers, JSON and tables use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_cannlm.measure.figures import Better

_SCALE = "scales and zero points (wrong axis, shifted by a group), a missing 1/sqrt(head size), doubled logits"
_SHAPE = "weight layout: nibble order, group size, transposition, RoPE row order, mask value in fp16"
_DISTRIBUTION = "per-tensor SQNR of the build, group size, quantizer and calibration; int8 activations in the kernels"
_WORST = "the worst position that the figure names: overflow in one row, a special token, the last position"
_TOKENS = "prompt ids on both sides first, then the logit margin where the texts part, then KL"

GREEDY_TOKENS = 32
"""How many tokens are decoded greedily per prompt where texts are compared; ``prefix_tokens`` cannot be more."""


@dataclass(frozen=True)
class Metric:
    """What a name means."""

    title: str
    unit: str
    better: Better
    look_at: str
    needs_logits: bool = True
    is_count: bool = False


METRICS: Mapping[str, Metric] = {
    "cosine_mean": Metric("mean cosine of logit rows", "", "higher", _SHAPE),
    "cosine_min": Metric("smallest cosine of a logit row", "", "higher", _WORST),
    "centred_cosine_mean": Metric("mean cosine of logit rows less their means", "", "higher", _SHAPE),
    "sqnr_db": Metric("signal to quantization noise", "dB", "higher", _SCALE),
    "rel_l2": Metric("norm of the error over norm of the reference", "", "lower", _SCALE),
    "psnr_db": Metric("peak max|reference| to rms error", "dB", "higher", _SCALE),
    "max_abs": Metric("largest absolute difference of a logit", "", "lower", _WORST),
    "mean_abs": Metric("mean absolute difference of logits", "", "lower", _SCALE),
    "kl_mean": Metric("mean KL(reference || device)", "nats", "lower", _DISTRIBUTION),
    "kl_p99": Metric("99th percentile of KL over positions", "nats", "lower", _WORST),
    "top1": Metric("share of positions with the same first choice", "", "higher", _DISTRIBUTION),
    "top5_agreement": Metric("reference's first choice in the device's top 5", "", "higher", _DISTRIBUTION),
    "top5_overlap": Metric("mean share of the top 5 in common", "", "higher", _DISTRIBUTION),
    "perplexity_ratio": Metric("device's perplexity over the reference's", "", "lower", _DISTRIBUTION),
    "prefix_tokens": Metric("leading tokens in common, worst prompt", "tokens", "higher", _TOKENS, False, True),
    "first_token_match": Metric("share of prompts with the same first token", "", "higher", _TOKENS, False),
}
"""Name -> meaning. A limit on any of them can stand in the ``parity`` marker."""
