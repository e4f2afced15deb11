"""Options that several commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output; progress on standard error.")]
Cache = Annotated[Path | None, typer.Option(help="Folder for models and built packages.", metavar="DIR")]
Pairs = Annotated[
    Path | None,
    typer.Option(help="File of versions that mean the same in two number spaces; added to the list.", metavar="FILE"),
]

Toolkit = Annotated[
    Path | None,
    typer.Option(help="Folder of the vendor's toolkit (default: what the environment selects).", metavar="DIR"),
]
