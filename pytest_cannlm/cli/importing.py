"""``cannlm import``: a package made elsewhere, taken in, and what became of it, for people."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pytest_cannlm.cli.answers import BAD, GOOD, Answer, show
from pytest_cannlm.cli.options import Json
from pytest_cannlm.compat.places import MANIFEST, PACKAGE_DIR
from pytest_cannlm.progress import progress_for

if TYPE_CHECKING:
    from pytest_cannlm.build.importing import ImportedPackage

_FIXABLE = ("PKG050", "PKG051", "PKG061")
"""Rules whose findings ``--fix`` takes away."""


def import_folder(
    source: Annotated[Path, typer.Argument(help="A package folder, a zip of one, or a vendor's download of it.")],
    out: Annotated[
        Path | None, typer.Option(help="The folder to make (default: named after the source).", metavar="DIR")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What the model is called (default: as the source).")] = None,
    cann: Annotated[
        str | None, typer.Option(help="The CANN version that built it, for a model that does not say.")
    ] = None,
    chip: Annotated[str | None, typer.Option(help="The chip that it is for, for a model that does not say.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A setting of the engine that the source does not say; repeatable.",
            metavar="SECTION.KEY=VALUE",
        ),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Write the tokenizer in the form that the engine reads.")] = False,
    link: Annotated[
        bool, typer.Option("--link", help="Share the large files with a source folder instead of copying them.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder although the lint finds errors.")] = False,
    json_: Json = False,
) -> int:
    """Take in a package that was made elsewhere: checked, linted, with a manifest. Never changes the source."""
    from pytest_cannlm.build.importing import ImportOrder, import_package, name_of, parse_settings

    order = ImportOrder(
        source=source,
        out=out or Path(name_of(source)),
        name=name or name_of(source),
        cann=cann,
        chip=chip,
        settings=parse_settings(settings or ()),
        fix=fix,
        link=link,
        keep=keep,
    )
    return show(_answer(import_package(order, progress=progress_for(sys.stderr))), as_json=json_)


def _answer(imported: ImportedPackage) -> Answer:
    """Exit code 1 where the lint found errors, and then there is a folder only if it was to be kept."""
    folder, good = imported.folder, imported.report.good()
    data = {
        "package": None if folder is None else str(folder / PACKAGE_DIR),
        "manifest": None if folder is None else str(folder / MANIFEST),
        "good": good,
        "source": imported.manifest["source"],
        "changes": imported.manifest["changes"],
        "lint": imported.report.as_dict(),
    }
    return Answer(data, list(_lines(imported)), GOOD if good else BAD)


def _lines(imported: ImportedPackage) -> Iterator[str]:
    from pytest_cannlm.cli.linting import lines_of

    yield from lines_of(imported.report)
    for file, change in imported.manifest["changes"].items():
        yield f"{file}: {change}"
    if imported.folder is None:
        fixable = any(finding.code in _FIXABLE for finding in imported.report.findings)
        fix = ", try --fix" if fixable and not imported.manifest["changes"] else ""
        yield f"nothing was imported: correct the source{fix}, or keep the folder all the same with --keep"
        return
    linked = imported.manifest["source"]["linked"]
    if linked:
        yield f"shared with the source, so change them in neither place: {', '.join(linked)}"
    yield str(imported.folder / PACKAGE_DIR)
