"""The programs of a toolkit: there, executable, and with the loader that they ask for."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pytest_cannlm.toolkits.elf import interpreter
from pytest_cannlm.toolkits.files import executable, is_file
from pytest_cannlm.toolkits.model import Problem, Tool

_LOADER = Path("/lib64/ld-linux-x86-64.so.2")
"""The loader of a 64-bit Linux, by its ABI; what the vendor's program asks for is the same one under another name."""


def tool(name: str, path: Path) -> Tool | None:
    """The program at ``path``, if there is one."""
    return Tool(name, path, executable(path), interpreter(path)) if is_file(path) else None


def tool_problems(tools: Iterable[Tool]) -> list[Problem]:
    """Why a program would not start."""
    problems = []
    for one in tools:
        if one.executable is False:
            problems.append(
                Problem(
                    f"{one.name} cannot be run: unpacking loses the execute bit",
                    one.path,
                    "no execute bit",
                    "an executable file",
                    f"chmod +x {one.path}",
                )
            )
        if one.interpreter and not is_file(one.interpreter):
            problems.append(
                Problem(
                    f"{one.name} cannot be run: the loader that it asks for is missing, which a shell reports as "
                    "'not found' or 'permission denied'",
                    one.path,
                    f"no {one.interpreter}",
                    f"a link to the system's loader, {_LOADER}",
                    f"ln -s {_LOADER} {one.interpreter}",
                )
            )
    return problems
