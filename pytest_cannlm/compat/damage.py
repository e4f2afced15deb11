"""What happens to a package on its way to a device, who can notice it, and with which code. Valid for Python 3.10."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Damage:
    """One kind of damage: what it is, the code with which the gate refuses it, and whether an engine can notice it."""

    what: str
    code: str
    engine_notices: bool = True


DAMAGES: Mapping[str, Damage] = {
    "truncate": Damage("the weight file is cut short", "PACKAGE_DAMAGED"),
    "missing-weights": Damage("the weight file is not there", "PACKAGE_INCOMPLETE"),
    "header": Damage("the first bytes of the model file are zero", "OM_BAD_MAGIC"),
    "empty": Damage("the model file has no bytes", "OM_EMPTY"),
    "pointer": Damage("the model file is the Git LFS pointer in its place", "OM_BAD_MAGIC"),
    "trailing": Damage(
        "bytes follow the end of the model, as when it was written over a longer file", "OM_LENGTH_MISMATCH"
    ),
    "stale-manifest": Damage(
        "the manifest is that of another build, with other sizes", "PACKAGE_DAMAGED", engine_notices=False
    ),
}
"""Kinds by name. A changed byte inside the weights is none of them: every size is right, and only a hash tells."""
