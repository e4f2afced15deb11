"""Sizes that follow from another file: what a cut-off copy or a mixed-up package gives away. Valid for Python 3.10."""

from __future__ import annotations

from pathlib import Path

from pytest_cannlm.compat.checks import FILES, REBUILD, SIZES, Check
from pytest_cannlm.compat.package import Manifest, PackageFolder, SizeRule
from pytest_cannlm.compat.places import CONTEXT, inside
from pytest_cannlm.container.core import Container
from pytest_cannlm.container.source import ReadLimitError

_SIZE_RULE = "files whose size follows from another file have that size"


def check_sizes(container: Container, folder: PackageFolder, manifest: Manifest | None) -> list[Check]:
    """Whether files whose size follows from another file have that size; one check if all do, else one per file.

    ``context.json`` may have any: how to generate is the user's to change.
    """
    rules = list(folder.size_rules)
    in_manifest: list[SizeRule] = []
    for name, size in (manifest.sizes if manifest else {}).items():
        path = inside(folder.folder, name)
        if manifest and path is not None and name != CONTEXT:
            in_manifest.append(SizeRule(path, size, f"files in {manifest.path.name}"))
    unknown = False
    if container.external_weights:
        try:
            weight_size = container.external_weight_size()
        except ReadLimitError:
            weight_size = None
        if weight_size is not None:
            rules.append(SizeRule(folder.weight.path, weight_size, f"graphop_weight_size of {container.path.name}"))
        unknown = weight_size is None and all(rule.path != folder.weight.path for rule in in_manifest)
    rules += in_manifest
    wrong = [check for rule in rules if (check := _wrong_size(rule)) is not None]
    if wrong:
        return wrong
    if unknown:
        return [_weight_size_unknown(container, folder)]
    return [
        Check(
            name=SIZES,
            outcome="ok",
            code=None,
            found=f"{len(rules)} sizes as expected",
            found_in=str(folder.folder),
            expected="the same sizes",
            expected_from="executor.json, the model and the manifest",
            rule=_SIZE_RULE,
            remedy="",
        )
    ]


def _wrong_size(rule: SizeRule) -> Check | None:
    have = _size(rule.path)
    if have == rule.expected or (have is None and rule.expected == 0):
        return None
    return Check(
        name=SIZES if have is not None else FILES,
        outcome="mismatch",
        code="PACKAGE_INCOMPLETE" if have is None else "PACKAGE_DAMAGED",
        found=f"missing: {rule.path.name}" if have is None else f"{have} bytes",
        found_in=str(rule.path),
        expected=f"{rule.path.name} of {rule.expected} bytes",
        expected_from=rule.reason,
        rule=_SIZE_RULE,
        remedy=REBUILD,
    )


def _weight_size_unknown(container: Container, folder: PackageFolder) -> Check:
    have = _size(folder.weight.path)
    return Check(
        name=SIZES if have is not None else FILES,
        outcome="unknown" if have is not None else "mismatch",
        code="WEIGHT_SIZE_UNKNOWN" if have is not None else "PACKAGE_INCOMPLETE",
        found=f"missing: {folder.weight.path.name}" if have is None else f"{have} bytes",
        found_in=str(folder.weight.path),
        expected=f"{folder.weight.path.name} of the size that the model was compiled with",
        expected_from=f"{container.path.name}, which does not say it where it may be read",
        rule="a compiled model without weights inside has them in a file of its own",
        remedy=REBUILD if have is None else "Keep the manifest beside the package, it holds the size",
    )


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None
