"""What the LM Engine demands of any package. Standard library only, valid for Python 3.10."""

PREFILL_POSITIONS = 64
"""Positions of one prefill step: the larger of the two shapes that a language model is compiled for."""


def context_problem(context: int) -> str | None:
    """Why ``context`` (``kv_cache_max_len``) cannot be built, or None: prefill fills the KV cache in whole steps."""
    if context >= PREFILL_POSITIONS and context % PREFILL_POSITIONS == 0:
        return None
    return f"a multiple of {PREFILL_POSITIONS}"
