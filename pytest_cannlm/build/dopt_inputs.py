"""What a run of dopt is given, looked at before it costs a day of a GPU, and the identity of it."""

from __future__ import annotations

import json
from pathlib import Path

from pytest_cannlm.build.cache import key_of
from pytest_cannlm.build.schemes import GROUP_SIZES
from pytest_cannlm.errors import BadInputError, UsageError
from pytest_cannlm.models.config import DecoderConfig
from pytest_cannlm.models.hashing import file_sha256


def check_group_size(group_size: int, config: DecoderConfig) -> None:
    """Refuse a size that the tools do not know, or that does not divide the columns of the decoder's matrices.

    Raises:
        UsageError: it is such a size.
    """
    if group_size not in GROUP_SIZES:
        raise UsageError(
            "group size not supported",
            field="group_size",
            found=group_size,
            expected=", ".join(map(str, GROUP_SIZES)),
        )
    columns = (config.hidden_size, config.intermediate_size, config.heads * config.head_dim)
    uneven = [count for count in columns if count % group_size]
    if uneven:
        raise UsageError(
            "the group size does not divide the columns of the model's matrices",
            field="group_size",
            found=f"{group_size} with {uneven[0]} columns",
            remedy="Take a smaller group size",
        )


def check_calibration(file: Path) -> None:
    """Refuse what dopt would stumble over after it has loaded the model.

    Raises:
        UsageError: there is no such file.
        BadInputError: it is not a JSON list of ``{"text": …}``.
    """
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError("cannot read the calibration text", file=file, found=error.strerror) from error
    except (ValueError, RecursionError) as error:
        raise _not_a_list_of_texts(file, str(error)) from error
    if not isinstance(entries, list) or not entries:
        raise _not_a_list_of_texts(file, "an empty list" if entries == [] else "no list")
    for number, entry in enumerate(entries):
        if not (isinstance(entry, dict) and isinstance(entry.get("text"), str)):
            raise _not_a_list_of_texts(file, f"entry {number}: {str(entry)[:60]!a}")


def programs_key(folder: Path) -> str:
    """Identity of the programs in ``folder``: sources and libraries. What runs of them leave there does not count."""
    files = (path for path in folder.rglob("*") if path.suffix in (".py", ".so") and path.is_file())
    return key_of({path.relative_to(folder).as_posix(): file_sha256(path) for path in files})


def _not_a_list_of_texts(file: Path, found: str) -> BadInputError:
    return BadInputError(
        "not a calibration text for dopt", file=file, found=found, expected='a JSON list: [{"text": "…"}, …]'
    )
