"""Groups of nodes that the compiler treats as one, and weights of unusual size."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from pytest_cannlm.affinity.subject import Problem, Subject
from pytest_cannlm.affinity.walk import Scope, name_of

_BETWEEN = frozenset(("Add", "Cast", "Div", "Mul", "Where"))
"""Operators between the scores of attention and their softmax: scale, mask, type."""
_STEPS = 4


def rope(subject: Subject) -> Iterator[Problem]:
    """Rotary embeddings of basic operators: x * cos + concat(-x2, x1) * sin."""
    for scope in subject.scopes:
        for node in scope.nodes:
            if node.op_type == "Add" and any(_turned(scope, made) for made in _made_by(scope, node, "Mul", every=True)):
                yield Problem("rope", name_of(node))
                if scope.type_of.get(node.output[0]) == onnx.TensorProto.FLOAT16:
                    yield Problem("float16-rope", name_of(node))


def attention(subject: Subject) -> Iterator[Problem]:
    """Attention of basic operators: MatMul of the softmax of a scaled and masked MatMul."""
    for scope in subject.scopes:
        for node in scope.nodes:
            if node.op_type == "MatMul" and any(
                _comes_from_scores(scope, softmax) for softmax in _made_by(scope, node, "Softmax")
            ):
                yield Problem("attention", name_of(node))


def large_weights(subject: Subject) -> Iterator[Problem]:
    """MatMul whose weights have very many rows."""
    many = subject.limit("matmul-large")
    for scope in subject.scopes:
        for node in scope.nodes:
            weights = scope.constant_of.get(node.input[1]) if node.op_type == "MatMul" and len(node.input) > 1 else None
            if weights is not None and len(weights.dims) > 1 and weights.dims[-2] >= many:
                yield Problem("matmul-large", name_of(node), f"{weights.dims[-2]} rows")


def _made_by(scope: Scope, node: onnx.NodeProto, operator: str, *, every: bool = False) -> list[onnx.NodeProto]:
    """Nodes of ``operator`` that compute inputs of ``node``; with ``every`` none unless they compute all of them."""
    made = [scope.maker[name] for name in node.input if name in scope.maker]
    found = [each for each in made if each.op_type == operator]
    return found if not every or len(found) == len(node.input) else []


def _turned(scope: Scope, product: onnx.NodeProto) -> bool:
    """Whether one factor is the vector with its halves exchanged, the first of them negated."""
    for turned in _made_by(scope, product, "Concat"):
        first = scope.maker.get(turned.input[0]) if turned.input else None
        if first is not None and first.op_type in ("Neg", "Mul"):
            return True
    return False


def _comes_from_scores(scope: Scope, node: onnx.NodeProto) -> bool:
    """Whether a MatMul lies a few steps before ``node``, through operators that scale, mask or cast."""
    reached = [node]
    for _ in range(_STEPS):
        makers = [scope.maker[name] for each in reached for name in each.input if name in scope.maker]
        if any(maker.op_type == "MatMul" for maker in makers):
            return True
        reached = [maker for maker in makers if maker.op_type in _BETWEEN]
    return False
