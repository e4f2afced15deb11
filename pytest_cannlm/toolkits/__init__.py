"""The host's CANN toolkits: found, read, and held against each other. Opens version files, runs nothing.

What cannot be told is unknown, never an error: a toolkit without a version file is still a toolkit.
"""

from __future__ import annotations

from pytest_cannlm.toolkits.find import default_roots, find_toolkits
from pytest_cannlm.toolkits.match import match
from pytest_cannlm.toolkits.model import Archive, Platform, Problem, ReadVersion, Tool, Toolkit
from pytest_cannlm.toolkits.selection import environment_problems

__all__ = [
    "Archive",
    "Platform",
    "Problem",
    "ReadVersion",
    "Tool",
    "Toolkit",
    "default_roots",
    "environment_problems",
    "find_toolkits",
    "match",
]
