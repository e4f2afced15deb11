"""The harness's rooms with the hooks of :mod:`pytest_cannlm.hookspecs` in front of the project's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_cannlm.harness.rooms import DeviceLike, Reference, Rooms, own_rooms

if TYPE_CHECKING:
    import pytest

    from pytest_cannlm.build import PackageFolder, Recipe
    from pytest_cannlm.devices import DeviceSpec
    from pytest_cannlm.progress import Progress


def rooms_of(config: pytest.Config) -> Rooms:
    """Each room asks the hooks first; where none answers, the project's own does the work."""
    own = own_rooms()
    hook = config.hook

    def open_device(spec: DeviceSpec) -> DeviceLike:
        opened: DeviceLike | None = hook.pytest_cannlm_open_device(config=config, spec=spec)
        return own.open_device(spec) if opened is None else opened

    def find_model(model: str, cache: Path, progress: Progress) -> Path:
        found: Path | None = hook.pytest_cannlm_find_model(config=config, model=model)
        return own.find_model(model, cache, progress) if found is None else found

    def build(recipe: Recipe, cache: Path, progress: Progress) -> PackageFolder:
        built: PackageFolder | None = hook.pytest_cannlm_build(config=config, recipe=recipe)
        return own.build(recipe, cache, progress) if built is None else built

    def reference(package: PackageFolder, checkpoint: Path | None, cache: Path, progress: Progress) -> Reference:
        made: Reference | None = hook.pytest_cannlm_reference(config=config, package=package, checkpoint=checkpoint)
        return own.reference(package, checkpoint, cache, progress) if made is None else made

    return Rooms(open_device=open_device, find_model=find_model, build=build, relabel=own.relabel, reference=reference)
