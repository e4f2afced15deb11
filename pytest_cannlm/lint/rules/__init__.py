"""The rules, one module per subject; :data:`RULES` is all of them in the order of their codes."""

from __future__ import annotations

from pytest_cannlm.lint.finding import Rule
from pytest_cannlm.lint.rules import (
    context,
    embedding,
    executor,
    folder,
    graph,
    manifest,
    model,
    settings,
    tokenizer,
    weights,
)

_SUBJECTS = (folder, settings, executor, graph, embedding, tokenizer, context, model, weights, manifest)

RULES: tuple[Rule, ...] = tuple(
    sorted((rule for subject in _SUBJECTS for rule in subject.BOOK.rules), key=lambda rule: rule.code)
)
"""Every rule once."""
