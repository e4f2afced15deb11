"""``memory_ceiling``: the engine's footprint while the body ran, and after unloading where that is limited."""

from __future__ import annotations

from pytest_cannlm.agent.protocol import GenerateRequest, Memory
from pytest_cannlm.harness.judgement import Judged
from pytest_cannlm.harness.prompts import STANDARD_PROMPTS, question_prompt
from pytest_cannlm.harness.run import Run
from pytest_cannlm.markers import MemoryCeiling
from pytest_cannlm.measure.figures import Limit
from pytest_cannlm.measure.judging import judge_memory
from pytest_cannlm.measure.memory import memory_sample

LIMITS = ("load", "peak", "retained", "kv_per_token")
_STANDARD_NEW_TOKENS = 64


def observe(run: Run) -> Memory:
    """The footprint after what the body did; a body that generated nothing is judged on the standard prompts.

    :raises UsageError: a standard prompt does not fit the context.
    """
    if not run.asked:
        for question in STANDARD_PROMPTS:
            prompt = question_prompt(run.tokenizer, question)
            run.generate(GenerateRequest(text=prompt, max_new_tokens=min(_STANDARD_NEW_TOKENS, run.room(prompt))))
    return run.client.memory()


def judge(run: Run, marker: MemoryCeiling, memory: Memory) -> Judged:
    """One verdict per limit. A limit on what is retained unloads the package; the next test loads it again."""
    limits = {
        name: Limit(getattr(marker, name), f"marker on the {marker.sources[name]}")
        for name in LIMITS
        if getattr(marker, name) is not None
    }
    unloaded = run.client.unload() if marker.retained is not None else None
    sample = memory_sample(memory, unloaded=unloaded, resident_weight_bytes=run.weight_bytes)
    return Judged(tuple(judge_memory(sample, limits)), tuple(sample.figures.values()))
