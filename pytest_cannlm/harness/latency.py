"""``token_latency``: run the sampling plan after the body and hold its figures against the limits.

On a measured engine every generation is run, from an empty KV cache, end-of-text suppressed. On a modelled engine the
repeats draw seeded times and compute nothing again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from pytest_cannlm.agent.protocol import GenerateRequest, TimingRequest
from pytest_cannlm.errors import UsageError
from pytest_cannlm.harness.judgement import Judged
from pytest_cannlm.harness.prompts import STANDARD_PROMPTS, question_prompt
from pytest_cannlm.harness.run import Run
from pytest_cannlm.markers import TokenLatency
from pytest_cannlm.measure import latency
from pytest_cannlm.measure.figures import Limit
from pytest_cannlm.measure.judging import judge_latency
from pytest_cannlm.measure.plan import InconclusivePolicy, SamplingPlan, combine, next_step
from pytest_cannlm.measure.sampling import Round, TimedGeneration, latency_sample

Measure = Callable[[int], Round]
"""Takes round number n and returns its generations."""


def judge(run: Run, marker: TokenLatency, policy: InconclusivePolicy) -> Judged:
    """One verdict per limit of the marker, with every latency figure of the sample."""
    plan = marker.plan(policy)
    prompt, prompt_tokens = _prompt(run, marker)
    if plan.new_tokens > run.room(prompt):
        raise UsageError(
            "prompt and new tokens of the latency test do not fit the KV cache",
            field="new_tokens",
            found=f"{plan.new_tokens} behind {prompt_tokens} tokens of the prompt",
            expected=f"at most {run.room(prompt)}",
        )
    limits = {
        name: Limit(getattr(marker, name), f"marker on the {marker.sources[name]}")
        for name in ("decode_ms", "ttft_ms", "prefill_tps")
        if getattr(marker, name) is not None
    }
    measure: Measure
    rounds: list[Round] = []
    if run.can("modelled_timing"):
        measure = _modelled(run, plan, prompt_tokens)
    else:
        unsteady = _warm_up(run, plan, prompt)
        measure = _measured(run, plan, prompt, unsteady)
    step = next_step(plan, good_rounds=0)
    while True:
        rounds += [measure(len(rounds) + n) for n in range(step.rounds)]
        sample = latency_sample(rounds, plan=plan, context=run.context)
        verdicts = judge_latency(sample, limits)
        step = next_step(
            plan,
            good_rounds=sample.good_rounds,
            void_rounds=len(sample.void_rounds),
            outcome=combine([verdict.outcome for verdict in verdicts]),
        )
        if step.done:
            break
    if step.outcome == "inconclusive" and not any(verdict.outcome == "inconclusive" for verdict in verdicts):
        # The rounds, not the figures, left it open: nothing that was judged on them may stand.
        voids = "; ".join(sorted(set(sample.void_rounds)))
        verdicts = [replace(v, outcome="inconclusive", reason=f"{step.reason}: {voids}") for v in verdicts]
    return Judged(tuple(verdicts), tuple(sample.figures.values()))


def _prompt(run: Run, marker: TokenLatency) -> tuple[str, int]:
    """The prompt that is timed, and its number of tokens: the marker's, else the body's first, else a standard one."""
    if marker.prompt is None and run.asked:
        first = run.asked[0]
        return first.prompt, first.generation.prompt_tokens
    prompt = question_prompt(run.tokenizer, marker.prompt or STANDARD_PROMPTS[0])
    return prompt, len(run.tokenizer.encode(prompt))


def _modelled(run: Run, plan: SamplingPlan, prompt_tokens: int) -> Measure:
    def measure(number: int) -> Round:
        request = TimingRequest(
            prompt_tokens=prompt_tokens,
            new_tokens=plan.new_tokens,
            repeats=plan.generations_per_round,
            seed=number * plan.generations_per_round,  # the engine counts on from here, one seed per repeat
        )
        drawn = run.client.sample_times(request)
        return Round(tuple(TimedGeneration(prompt_tokens, times, "modelled") for times in drawn))

    return measure


def _measured(run: Run, plan: SamplingPlan, prompt: str, unsteady: str | None) -> Measure:
    def measure(number: int) -> Round:
        if unsteady:
            return Round((), void=unsteady)
        return Round(tuple(_timed(run, plan, prompt) for _ in range(plan.generations_per_round)))

    return measure


def _warm_up(run: Run, plan: SamplingPlan, prompt: str) -> str | None:
    """Generate until the engine is steady; None then, else why it is not."""
    tpots: list[float] = []
    started = time.monotonic()
    while True:
        tpots.append(latency.tpot(_timed(run, plan, prompt).times))
        state = plan.warmup.state(tpots, time.monotonic() - started)
        if state == "never steady":
            return f"the engine was never steady in {len(tpots)} warm-up generations"
        if state == "steady":
            return None


def _timed(run: Run, plan: SamplingPlan, prompt: str) -> TimedGeneration:
    request = GenerateRequest(text=prompt, max_new_tokens=plan.new_tokens, ignore_eos=True)
    return TimedGeneration.of(run.generate(request))
