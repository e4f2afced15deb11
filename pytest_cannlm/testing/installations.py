"""Folders that look like the vendor's installations, with programs in them that can be run."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest_cannlm
from pytest_cannlm.compat.versions import parse
from pytest_cannlm.testing.faults import FAULTS, Fault

ORDERS = "double.json"
"""Lies beside a program: its version and the faults that it was given."""

_RENAMED = "6.1.1.0"
"""The first DDK whose dopt calls its module ``dopt_lm``."""


def fake_ddk(
    folder: Path, *, version: str = "6.1.1.0", platforms: Iterable[str] = ("kirinx90",), faults: Iterable[Fault] = ()
) -> Path:
    """A Kirin DDK as people unpack it, with doubles of ``omg`` and ``dopt``. For Linux and macOS: they are scripts.

    Args:
        folder: gets ``DDK-tools-next-VERSION``.
        version: of the DDK.
        platforms: names of the plugins that are installed.
        faults: what ``omg`` gets wrong.

    Returns:
        Its folder ``tools``.
    """
    tools = folder.resolve() / f"DDK-tools-next-{version}" / "tools"
    omg = tools / "tools_omg"
    _program(omg / "omg", "omg")
    _program(omg / "master" / "omg", "omg", "--behind-the-wrapper")
    (omg / "master" / "lib64").mkdir()
    _orders(omg, version, faults)
    for name in platforms:
        for part in ("lib64", "ops/impl"):
            (tools / "platform" / name / part).mkdir(parents=True)
    module = "dopt_lm" if parse(version) >= parse(_RENAMED) else "dopt_llm"
    script = tools / "tools_dopt" / "dopt_pytorch_py3" / "dopt" / module / "opt_main.py"
    _write(
        script,
        f"import sys\nsys.path.append({str(_root())!r})\nfrom pytest_cannlm.testing.dopt import main\n\nmain()\n",
    )
    return tools


def fake_mobile_station(
    folder: Path, *, version: str = "9.0.0", platforms: Iterable[str] = ("KirinX90",), faults: Iterable[Fault] = ()
) -> Path:
    """The mobile-station CANN toolkit as its installer leaves it, with a double of ``atc``; returns its root.

    Args:
        folder: gets ``cann-VERSION``.
        version: of its parts.
        platforms: chips that it has a platform file for.
        faults: what ``atc`` gets wrong.
    """
    root = folder.resolve() / f"cann-{version}"
    for part in ("compiler", "opp", "runtime", "toolkit"):
        _write(root / part / "version.info", f"Version={version}\n")
    install = f"package_name=Ascend-cann-mobile-station\nversion={version}\narch=x86_64\nos=linux\n"
    _write(root / "x86_64-linux" / "ascend_toolkit_install.info", install)
    for name in platforms:
        _write(root / "x86_64-linux" / "data" / "platform_config" / f"{name}.ini", "")
    _program(root / "bin" / "atc", "atc")
    _orders(root / "bin", version, faults)
    return root


def read_orders(folder: Path) -> tuple[str, frozenset[str]]:
    """Version and faults that a double was made with."""
    data = json.loads((folder / ORDERS).read_text(encoding="utf-8"))
    return data["version"], frozenset(data["faults"])


def _orders(folder: Path, version: str, faults: Iterable[Fault]) -> None:
    chosen = sorted(faults)
    unknown = [name for name in chosen if name not in FAULTS]
    if unknown:
        raise ValueError(f"no fault {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    _write(folder / ORDERS, json.dumps({"version": version, "faults": chosen}))


def _program(path: Path, module: str, *more: str) -> None:
    """A script that runs a module of this room on the interpreter that made it."""
    folder = path.parent.parent if path.parent.name == "master" else path.parent
    command = shlex.join(
        [sys.executable, "-P", "-m", f"pytest_cannlm.testing.{module}", "--double", str(folder), *more]
    )
    search = f"PYTHONPATH={shlex.quote(str(_root()))}${{PYTHONPATH:+:$PYTHONPATH}}"
    _write(path, f'#!/bin/sh\n{search}\nexport PYTHONPATH\nexec {command} "$@"\n')
    path.chmod(0o755)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _root() -> Path:
    return Path(pytest_cannlm.__file__).resolve().parents[1]
