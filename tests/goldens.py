"""Stored results of independent implementations; fixtures/goldens/provenance.json says of which."""

import json
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "goldens"


def golden_arrays(name: str) -> dict[str, np.ndarray]:
    """``tiny_llama`` (ids, logits of all positions and tokens) or ``smollm2_135m`` (see make_goldens.py)."""
    with np.load(FOLDER / f"{name}.npz") as arrays:
        return dict(arrays)


def golden_tokens() -> dict[str, Any]:
    """SmolLM2: ``encoded`` (text, ids with and without special tokens) by llama.cpp, ``chat`` by transformers."""
    return json.loads((FOLDER / "smollm2_135m_tokenizer.json").read_text(encoding="utf-8"))


def cosine(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Cosine of each row with its counterpart."""
    one, other = one.astype(np.float64), other.astype(np.float64)
    return (one * other).sum(axis=1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
