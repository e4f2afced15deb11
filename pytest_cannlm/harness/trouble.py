"""What the operating system refuses, as an error of the environment with a next step."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from pytest_cannlm.errors import EnvironmentFailure

_REMEDIES = {
    errno.ENOSPC: "Free space there, or keep models and packages on another disk (--npu-cache)",
    errno.EDQUOT: "Free space there, or keep models and packages on another disk (--npu-cache)",
    errno.EROFS: "Choose a folder that can be written (--npu-cache)",
    errno.EACCES: "Give this user the right to it, or choose another folder (--npu-cache)",
    errno.EPERM: "Give this user the right to it, or choose another folder (--npu-cache)",
    errno.EMFILE: "Raise the number of files that a process may open",
}
_OTHERWISE = "Check disk, rights and path, or choose another folder (--npu-cache)"


@contextmanager
def environment_errors(what: str) -> Iterator[None]:
    """Turn an :class:`OSError` of the block into an :class:`EnvironmentFailure` that names the file and a remedy."""
    try:
        yield
    except OSError as error:
        raise EnvironmentFailure(
            f"{what} could not be made ready: {error.strerror or error}",
            file=error.filename2 or error.filename,
            remedy=_REMEDIES.get(error.errno or 0, _OTHERWISE),
            code=errno.errorcode.get(error.errno or 0),
        ) from error
