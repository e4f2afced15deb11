"""``parity``: the device's outputs against the ONNX reference's, on the same tokens.

Logits are teacher-forced: both sides read the same ids, window by window, so that memory stays at one window. Greedy
texts are compared only where a limit on them (``prefix_tokens``, ``first_token_match``) asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_cannlm.agent.protocol import GenerateRequest
from pytest_cannlm.harness.judgement import Judged
from pytest_cannlm.harness.prompts import STANDARD_PROMPTS, question_prompt
from pytest_cannlm.harness.rooms import Reference
from pytest_cannlm.harness.run import Run
from pytest_cannlm.markers import Parity
from pytest_cannlm.measure.figures import Figure, Limit, Verdict
from pytest_cannlm.parity.guards import check_origin
from pytest_cannlm.parity.judging import judge_parity
from pytest_cannlm.parity.names import METRICS
from pytest_cannlm.parity.profiles import choose_profile
from pytest_cannlm.parity.result import ParityResult
from pytest_cannlm.parity.text import Window, cut_windows, standard_text
from pytest_cannlm.parity.tokens import GreedyComparison, compare_greedy, compare_prompt_ids, prefix_figures
from pytest_cannlm.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pytest_cannlm.models.tokenizer import Tokenizer

_WINDOW = 128
_GREEDY_TOKENS = 32


def judge(run: Run, marker: Parity, *, reference: Reference, progress: Progress) -> Judged:
    """One verdict per limit, or per guard that fired. Prompt ids come first: if they differ, nothing else counts."""
    limits, min_positions = limits_of(run, marker)
    different = _different_ids(run, reference.tokenizer)
    if different is not None:
        return Judged((different,))
    windows = _windows(run, marker, reference.tokenizer)
    result, missing = compare(run, marker, limits, windows, reference=reference, progress=progress)
    verdicts = judge_parity(result, limits, min_positions=min_positions, missing=missing)
    return Judged(tuple(verdicts), tuple(result.metrics.values()))


def limits_of(run: Run, marker: Parity) -> tuple[dict[str, Limit], int]:
    """The limits with their sources, and how many positions they need.

    Limits in the marker stand alone; with ``profile=`` they override single limits of it; without either, the profile
    of the package's scheme, size and quantizer applies.
    """
    own = {name: Limit(value, f"marker on the {marker.sources[name]}") for name, value in marker.limits.items()}
    if own and marker.profile is None:
        return own, 1
    facts = run.package.data
    profile = choose_profile(
        marker.profile,
        scheme=run.case.scheme,
        parameters=int(facts.get("model", {}).get("parameters", 0)),
        quantizer=str(facts.get("build", {}).get("quantizer", "rtn")),
        model=run.case.model,
        against=marker.against,
        int8_activations=run.device.options.get("mode") == "fast",
    )
    return {**profile.sourced_limits(), **own}, profile.min_positions


def compare(
    run: Run,
    marker: Parity,
    limits: dict[str, Limit],
    windows: Sequence[Window],
    *,
    reference: Reference,
    progress: Progress,
) -> tuple[ParityResult, dict[str, str]]:
    """Everything that the limits need, and per metric that cannot be observed the reason."""
    from pytest_cannlm.parity.accumulate import ParityAccumulator

    origin = check_origin(run.client.memory().kind, device_is_simulated=run.device.simulated)
    accumulator = ParityAccumulator(
        against=marker.against,
        kind=run.kind,
        reference_hash=reference.digest,
        guards=[] if origin is None else [origin],
    )
    missing: dict[str, str] = {}
    needs_logits = [name for name in limits if METRICS[name].needs_logits]
    if needs_logits and run.can("logits"):
        positions = sum(len(window.targets) for window in windows)
        with progress.task(f"parity against {marker.against}", total=positions, unit="tokens") as task:
            for window in windows:
                device = run.client.logits(window.tokens, window.first)
                accumulator.add(_all(reference, window), device, _targets(window))
                task.advance(len(window.targets))
        result = accumulator.result()
    else:
        note = run.capabilities.notes.get("logits")
        reason = "not observable: needs logits" + (f" ({note})" if note else "")
        missing = dict.fromkeys(needs_logits, reason)
        guards = () if origin is None else (origin,)
        result = ParityResult({}, 0, guards, marker.against, reference.digest)
    if len(needs_logits) < len(limits):
        greedy = _greedy_figures(run, marker, reference)
        result = ParityResult(**{**vars(result), "metrics": {**result.metrics, **greedy}})
    return result, missing


def _windows(run: Run, marker: Parity, tokenizer: Tokenizer) -> list[Window]:
    """What is compared, ``marker.tokens`` positions at most: the marker's prompts, or what the body asked and got,
    followed by pieces of the standard text."""
    if marker.prompts is not None:
        asked = [tokenizer.encode(question_prompt(tokenizer, prompt)) for prompt in marker.prompts]
        return _whole(asked, marker.tokens, run.context)
    own = [[*tokenizer.encode(asked.prompt), *asked.generation.tokens] for asked in run.asked]
    windows = _whole(own, marker.tokens, run.context)
    left = marker.tokens - sum(len(window.targets) for window in windows)
    if left:
        ids = tokenizer.encode(standard_text(), special=False)
        prefix = ids[:1] if tokenizer.spec.add_bos else []
        length = min(_WINDOW, run.context - 1) - len(prefix)
        windows += cut_windows(ids[len(prefix) :], positions=left, length=length, prefix=prefix)
    return windows


def _whole(texts: Sequence[Sequence[int]], positions: int, context: int) -> list[Window]:
    """A window per text, in order, until ``positions`` are reached."""
    windows = []
    for text in texts:
        ids = text[: min(positions, context - 1) + 1]
        if len(ids) > 1:
            windows.append(Window(tuple(ids[:-1]), 0, tuple(ids[1:])))
            positions -= len(ids) - 1
    return windows


def _different_ids(run: Run, tokenizer: Tokenizer) -> Verdict | None:
    """A failing verdict if the engine makes other ids of a text than the reference's tokenizer, else None."""
    if not run.can("tokenize"):
        return None
    texts = [asked.prompt for asked in run.asked]
    texts += [question_prompt(tokenizer, question) for question in STANDARD_PROMPTS]
    found = (
        compare_prompt_ids(tokenizer.encode(text), run.client.tokenize(text), tokenizer.decode)
        for text in [*texts, standard_text()]
    )
    difference = next((one for one in found if one is not None), None)
    if difference is None:
        return None
    return Verdict(
        outcome="fail",
        figure=None,
        name="prompt_ids",
        limit=None,
        unit="",
        better="lower",
        margin=None,
        reason=str(difference),
        look_at="tokenizer.json of the package, who adds BOS, special tokens in the chat template",
        limit_source="guard, always checked",
    )


def _greedy_figures(run: Run, marker: Parity, reference: Reference) -> dict[str, Figure]:
    comparisons: list[GreedyComparison] = []
    for question in marker.prompts or STANDARD_PROMPTS:
        prompt = question_prompt(run.tokenizer, question)
        ids = run.tokenizer.encode(prompt)
        expected = reference.generate(ids, _GREEDY_TOKENS)
        run.client.reset()
        generation = run.client.generate(GenerateRequest(text=prompt, max_new_tokens=_GREEDY_TOKENS))

        def row(position: int, ids: Sequence[int] = ids, expected: Sequence[int] = expected) -> Sequence[float]:
            context = [*ids, *expected[:position]]
            *_, last = reference.logits(context, len(context) - 1)
            return [float(value) for value in last[-1]]

        comparisons.append(compare_greedy(expected, generation.tokens, reference_logits=row))
    return prefix_figures(comparisons, kind=run.kind)


def _all(reference: Reference, window: Window) -> npt.NDArray[np.float32]:
    import numpy as np

    return np.concatenate(list(reference.logits(window.tokens, window.first)))


def _targets(window: Window) -> npt.NDArray[np.int64]:
    import numpy as np

    return np.asarray(window.targets, dtype=np.int64)
