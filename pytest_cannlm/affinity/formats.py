"""Checks of the file format: IR version, opsets, domains, parts that converters do not read, and order."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from pytest_cannlm.affinity.subject import Problem, Subject
from pytest_cannlm.affinity.walk import STANDARD, Scope, domain_of, name_of


def ir_version(subject: Subject) -> Iterator[Problem]:
    """The version of the format, and what version 3 asks of initializers."""
    model, newest = subject.model, subject.limit("ir-version")
    if model.ir_version > newest:
        here = f"onnx {onnx.__version__} on this machine knows up to {onnx.IR_VERSION}"
        yield Problem("ir-version", "the file", f"IR version {model.ir_version}; {here}", f"up to {newest}")
    if model.ir_version < 4:
        inputs = {value.name for value in model.graph.input}
        for tensor in model.graph.initializer:
            if tensor.name not in inputs:
                yield Problem("ir-3", tensor.name, f"IR version {model.ir_version}")


def opsets(subject: Subject) -> Iterator[Problem]:
    """Imports: there, once, and for the standard domain in the converter's range."""
    versions: dict[str, set[int]] = {}
    for entry in subject.model.opset_import:
        versions.setdefault("" if entry.domain in STANDARD else entry.domain, set()).add(entry.version)
    for domain, found in versions.items():
        if len(found) > 1:
            yield Problem("opset-twice", domain or "the standard domain", " and ".join(map(str, sorted(found))), "one")
    lowest, highest = subject.limit("opset")
    for version in sorted(versions.get("", ())):
        if not lowest <= version <= highest:
            here = f"onnx {onnx.__version__} on this machine knows up to {onnx.defs.onnx_opset_version()}"
            yield Problem("opset", "the standard domain", f"opset {version}; {here}", f"{lowest} to {highest}")
    for scope in subject.scopes:
        for node in scope.nodes if scope.graph is not None else ():  # functions have imports of their own
            if domain_of(node) not in versions:
                yield Problem("opset-missing", name_of(node), f"domain {node.domain or 'ai.onnx'}", "an opset import")


def parts(subject: Subject) -> Iterator[Problem]:
    """Local functions, sparse initializers, a training part, an empty graph."""
    model = subject.model
    for function in model.functions:
        yield Problem("local-function", f"{function.domain}::{function.name}")
    for scope in subject.scopes:
        for sparse in scope.graph.sparse_initializer if scope.graph is not None else ():
            yield Problem("sparse", sparse.values.name)
    if model.training_info:
        yield Problem("training", "training_info")
    if not model.graph.node:
        yield Problem("no-nodes", "the file")


def flow(subject: Subject) -> Iterator[Problem]:
    """Values: computed before they are used, and once. Inputs of local functions are not known here."""
    seen: dict[Scope, set[str]] = {}  # outer scopes come before inner ones
    for scope in subject.scopes:
        if scope.graph is None or (scope.outer is not None and scope.outer not in seen):
            continue
        known = set(scope.given)
        around = seen[scope.outer] if scope.outer is not None else set()
        for node in scope.nodes:
            for name in node.input:
                if name and name not in known and name not in around:
                    when = "computed later" if name in scope.maker else "computed nowhere"
                    yield Problem("undefined-value", f"{name} of {name_of(node)}", when)
            for name in node.output:
                if name and name in known:
                    yield Problem("written-twice", f"{name} of {name_of(node)}")
            known.update(node.output)
        for value in scope.graph.output:
            if value.name and value.name not in known and value.name not in around:
                yield Problem("undefined-value", f"output {value.name}", "computed nowhere")
        seen[scope] = known | around
