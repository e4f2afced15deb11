"""What the attribute ``atc_cmdline``, the converter's command line, says of a model's origin. Valid for Python 3.10."""

from __future__ import annotations

import re

_RELEASE_FOLDER = re.compile(r"ascend-toolkit/([^/\s]{1,64})/")
_SOC_ARGUMENT = re.compile(r"--soc_version[=\s]\s*[\"']?([^\s\"']{1,64})")


def toolkit_release(command: str) -> str | None:
    """The release folder of the toolkit that the converter was started from, such as ``8.0.0`` or ``latest``."""
    found = _RELEASE_FOLDER.search(command)
    return found[1] if found else None


def soc_asked_for(command: str) -> str | None:
    """The SoC that the converter was told to build for."""
    found = _SOC_ARGUMENT.search(command)
    return found[1] if found else None
