"""``parity``: the device's outputs against the ONNX reference's, on the same tokens.

Logits are teacher-forced: both sides read the same ids, window by window, so that memory stays at one window's logits.
Greedy texts are compared only where a limit on them (``prefix_tokens``, ``first_token_match``) asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_cannlm.agent.protocol import GenerateRequest, Kind
from pytest_cannlm.errors import UsageError
from pytest_cannlm.harness import windows
from pytest_cannlm.harness.elsewhere import UNKNOWN_SCHEME
from pytest_cannlm.harness.judgement import Judged, guard
from pytest_cannlm.harness.prompts import STANDARD_PROMPTS, question_prompt
from pytest_cannlm.harness.rooms import Reference
from pytest_cannlm.harness.run import Run
from pytest_cannlm.harness.windows import Plan
from pytest_cannlm.markers import Parity
from pytest_cannlm.measure.figures import Figure, Limit, Verdict
from pytest_cannlm.parity.judging import judge_parity
from pytest_cannlm.parity.names import GREEDY_TOKENS, METRICS
from pytest_cannlm.parity.profiles import choose_profile
from pytest_cannlm.parity.result import ParityResult
from pytest_cannlm.parity.text import Window, standard_text
from pytest_cannlm.parity.tokens import GreedyComparison, compare_greedy, compare_prompt_ids, prefix_figures
from pytest_cannlm.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pytest_cannlm.models.tokenizer import Tokenizer


def judge(run: Run, marker: Parity, *, reference: Reference, progress: Progress) -> Judged:
    """One verdict per limit, or per guard that fired. Prompt ids come first: if they differ, nothing else counts."""
    limits, min_positions = limits_of(run, marker)
    different = _different_ids(run, reference.tokenizer)
    if different is not None:
        return Judged((different,))
    plan = windows.plan(run, marker, reference.tokenizer)
    if plan.cut:
        progress.say(f"parity against {marker.against}: {plan}")
    result, missing = compare(run, marker, limits, plan, reference=reference, progress=progress)
    verdicts = judge_parity(result, limits, min_positions=min_positions, missing=missing)
    if result.positions:
        verdicts = [_saying(verdict, plan) for verdict in verdicts]
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
    if run.case.scheme == UNKNOWN_SCHEME and marker.profile is None and marker.against != "quantized":
        raise UsageError(
            "no parity profile follows, because the package does not say its scheme",
            file=run.package.package,
            field="scheme",
            remedy="Give scheme= in the npu marker, or profile= or limits in the parity marker",
        )
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
    plan: Plan,
    *,
    reference: Reference,
    progress: Progress,
) -> tuple[ParityResult, dict[str, str]]:
    """Everything that the limits need, and per metric that cannot be observed the reason."""
    from pytest_cannlm.parity.accumulate import ParityAccumulator

    accumulator = ParityAccumulator(against=marker.against, kind=run.kind, reference_hash=reference.digest)
    missing: dict[str, str] = {}
    needs_logits = [name for name in limits if METRICS[name].needs_logits]
    if needs_logits and run.can("logits"):
        with progress.task(f"parity against {marker.against}", total=plan.positions, unit="tokens") as task:
            expected = reference.logits_of([(piece.window.tokens, piece.window.first) for piece in plan.pieces])
            for piece, rows in zip(plan.pieces, expected, strict=True):
                window = piece.window
                device = run.client.logits(window.tokens, window.first, 1 if piece.decoded else None)
                accumulator.add(rows, device, _targets(window))
                task.advance(piece.positions)
        result = _with_coverage(accumulator.result(), plan)
    else:
        note = run.capabilities.notes.get("logits")
        reason = "not observable: needs logits" + (f" ({note})" if note else "")
        missing = dict.fromkeys(needs_logits, reason)
        result = ParityResult({}, 0, (), marker.against, reference.digest)
    if len(needs_logits) < len(limits):
        greedy = _greedy_figures(run, marker, reference)
        result = ParityResult(**{**vars(result), "metrics": {**result.metrics, **greedy}})
    return result, missing


def _with_coverage(result: ParityResult, plan: Plan) -> ParityResult:
    """The result, each figure with how deep the comparison went and how much of it was decoded."""
    covered = {"depth": plan.depth, "decoded_positions": plan.decoded, "texts": plan.texts, "texts_cut": plan.cut}
    metrics = {name: replace(each, detail={**each.detail, **covered}) for name, each in result.metrics.items()}
    return replace(result, metrics=metrics)


def _saying(verdict: Verdict, plan: Plan) -> Verdict:
    """The verdict, with what it rests on where that can be news: it is no pass, or texts were cut."""
    if verdict.outcome == "pass" and not plan.cut:
        return verdict
    return replace(verdict, reason=f"{verdict.reason}; {plan}")


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
    look_at = "tokenizer.json of the package, who adds BOS, special tokens in the chat template"
    return guard("prompt_ids", str(difference), look_at)


def _greedy_figures(run: Run, marker: Parity, reference: Reference) -> dict[str, Figure]:
    comparisons: list[GreedyComparison] = []
    kinds: set[Kind] = set()
    for question in marker.prompts or STANDARD_PROMPTS:
        prompt = question_prompt(run.tokenizer, question)
        ids = run.tokenizer.encode(prompt)
        most = min(GREEDY_TOKENS, run.room(prompt))
        expected = reference.generate(ids, most)
        generation = run.generate(GenerateRequest(text=prompt, max_new_tokens=most))
        kinds.add(generation.kind)

        def row(position: int, ids: Sequence[int] = ids, expected: Sequence[int] = expected) -> Sequence[float]:
            context = [*ids, *expected[:position]]
            *_, last = reference.logits(context, len(context) - 1)
            return [float(value) for value in last[-1]]

        comparisons.append(compare_greedy(expected, generation.tokens, reference_logits=row))
    return prefix_figures(comparisons, kind="modelled" if "modelled" in kinds else "measured")


def _targets(window: Window) -> npt.NDArray[np.int64]:
    import numpy as np

    return np.asarray(window.targets, dtype=np.int64)
