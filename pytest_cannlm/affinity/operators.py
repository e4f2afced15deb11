"""Every node against the operator rules."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import onnx

from pytest_cannlm.affinity import dtypes
from pytest_cannlm.affinity.report import FIRST, OperatorVerdict
from pytest_cannlm.affinity.rules import OUTCOMES, Judgement, When, rules
from pytest_cannlm.affinity.subject import Subject
from pytest_cannlm.affinity.walk import Scope, domain_of, name_of
from pytest_cannlm.compat.checks import one_line


def verdicts(subject: Subject) -> tuple[OperatorVerdict, ...]:
    """One verdict for each operator and the rule that judges it, the worst first."""
    nodes: dict[tuple[str, Judgement], list[str]] = {}
    for name, operator, judgement in _judged(subject):
        nodes.setdefault((operator, judgement), []).append(name)
    found = [
        OperatorVerdict(
            operator=operator,
            outcome=judgement.outcome,
            count=len(names),
            where=tuple(names[:FIRST]),
            why=judgement.why,
            instead=judgement.instead,
            source=judgement.source,
            confidence=judgement.confidence,
        )
        for (operator, judgement), names in nodes.items()
    ]
    return tuple(sorted(found, key=lambda verdict: (OUTCOMES.index(verdict.outcome), verdict.operator)))


def _judged(subject: Subject) -> Iterator[tuple[str, str, Judgement]]:
    table = rules().for_operators(subject.toolchain, subject.chip)
    general = rules().general
    functions = {(function.domain, function.name) for function in subject.model.functions}
    highest = subject.limit("opset")[1]
    for scope in subject.scopes:
        for node in scope.nodes:
            domain, operator = domain_of(node), str(node.op_type)
            judgement: Judgement
            if (node.domain, operator) in functions:
                judgement = general["local-function"]
            else:
                candidates = [*table.get((domain, operator), ()), *table.get((domain, "*"), ())]
                fitting = (rule for rule in candidates if rule.when is None or _fits(rule.when, node, scope))
                name = "newer-operator" if not domain and _newer(operator, highest) else "unlisted"
                judgement = next(fitting, general[name])
            yield one_line(name_of(node)), one_line(f"{domain}::{operator}" if domain else operator), judgement


def _fits(when: When, node: onnx.NodeProto, scope: Scope) -> bool:
    if when.attribute:
        texts = [each.s.decode("utf-8", "replace") for each in node.attribute if each.name == when.attribute]
        return any(text in when.values for text in texts)
    inputs = [node.input[number] for number in when.inputs if number < len(node.input)]
    if when.constant is not None:
        inputs = [name for name in inputs if (name in scope.constant_of) is when.constant]
    if when.made_by:
        inputs = [name for name in inputs if name in scope.maker and scope.maker[name].op_type in when.made_by]
    if when.types:
        typed = [name for name in inputs if dtypes.name(scope.type_of.get(name, 0)) in when.types]
        return bool(typed) and (not when.every or len(typed) == len(when.inputs))
    return bool(inputs)


@lru_cache(maxsize=256)
def _newer(operator: str, highest: int) -> bool:
    """Whether the standard domain has the operator, and had none of this name up to opset ``highest``."""
    if not onnx.defs.has(operator, ""):
        return False
    try:
        onnx.defs.get_schema(operator, highest, "")
    except onnx.defs.SchemaError:
        return True
    return False
