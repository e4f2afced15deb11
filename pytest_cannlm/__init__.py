"""pytest-cannlm: test language models on Huawei's Kirin X90 NPU with ordinary pytest tests.

The names below are the public ones; each is imported from its room on first use, so that importing the package, which
every pytest run does, costs nothing.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_cannlm.build import BuiltPackage as BuiltPackage
    from pytest_cannlm.build import PackageFolder as PackageFolder
    from pytest_cannlm.build import Recipe as Recipe
    from pytest_cannlm.build import locate_package as locate_package
    from pytest_cannlm.errors import CannlmError as CannlmError
    from pytest_cannlm.errors import EngineCrash as EngineCrash
    from pytest_cannlm.errors import EngineError as EngineError
    from pytest_cannlm.errors import GateRefusal as GateRefusal
    from pytest_cannlm.errors import KVCacheOverflow as KVCacheOverflow
    from pytest_cannlm.harness.npu import Npu as Npu
    from pytest_cannlm.harness.npu import Reply as Reply
    from pytest_cannlm.parity.reference import OnnxReference as OnnxReference

__version__ = "0.1.0"

_HOMES = {
    "build": ("BuiltPackage", "PackageFolder", "Recipe", "locate_package"),
    "errors": ("CannlmError", "EngineCrash", "EngineError", "GateRefusal", "KVCacheOverflow"),
    "harness.npu": ("Npu", "Reply"),
    "parity.reference": ("OnnxReference",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
