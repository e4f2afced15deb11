"""One run's devices, packages, engines and references: each opened, built and loaded once, and closed at the end."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from pytest_cannlm.devices.spec import DeviceSpec
from pytest_cannlm.errors import CannlmError, DeviceError, UsageError
from pytest_cannlm.harness import elsewhere
from pytest_cannlm.harness.case import Case
from pytest_cannlm.harness.npu import Npu
from pytest_cannlm.harness.rooms import DeviceLike, EngineClient, Reference, Rooms
from pytest_cannlm.harness.run import NotRunError, Run
from pytest_cannlm.harness.trouble import environment_errors
from pytest_cannlm.progress import Progress
from pytest_cannlm.settings import Settings

if TYPE_CHECKING:
    from pytest_cannlm.agent.protocol import LoadReport
    from pytest_cannlm.build import PackageFolder, Recipe
    from pytest_cannlm.compat.gate import Target
    from pytest_cannlm.devices.base import DeviceInfo
    from pytest_cannlm.harness.fallback import CloudLlm, Trial


class UncheckedLoadWarning(UserWarning):
    """A package was loaded although the gate could not tell whether it fits, because the settings say so."""


K = TypeVar("K")
T = TypeVar("T")


class Harness:
    """What the fixtures and the command line stand on.

    A device or package that failed once is not tried again: its error is raised to the first test that needs it, and
    the later ones are not run, with that error as the reason.
    """

    def __init__(self, settings: Settings, *, rooms: Rooms, progress: Progress) -> None:
        self.settings = settings
        self.rooms = rooms
        self.progress = progress
        self.npu = Npu()
        self._devices = Once[str, DeviceLike]()
        self._models = Once[str, Path]()
        self._packages = Once["Recipe", "PackageFolder"]()
        self._references = Once[tuple[Path, Path | None], Reference]()

    def begin(self, case: Case) -> Run:
        """Make device, package and engine ready for a test and put it behind :attr:`npu`.

        A refusal of the gate is not remembered: it takes milliseconds, and every test of the package has to fail by it.

        :raises NotRunError: the device's chip is not among the test's, the engine lacks what the test requires, or what
            the test needs broke in an earlier test.
        :raises CannlmError: device, build, gate or engine failed.
        """
        device = self.device(case.device)
        self._check_chip(case, device.info)
        package = self.package(case, device.info)
        target = self.target(case, device.info)
        if case.package is not None:
            elsewhere.refuse_misfit(case.package, target)
        try:
            client = device.agent()
            with environment_errors(f"the device {device.info.name}"):
                load(client, package, target)
            capabilities, started = client.capabilities(), client.status()
        except DeviceError as error:
            self._devices.broke(case.device.text, error)
            raise
        missing = [name for name in case.requires if name not in capabilities.names]
        if missing:
            notes = [f"{name} ({capabilities.notes[name]})" if name in capabilities.notes else name for name in missing]
            raise NotRunError(
                f"the test requires {', '.join(notes)}, which the engine on {device.info.name} does not have"
            )
        run = Run(case, device.info, package, client, capabilities, target, started)
        self.npu.attach(run)
        return run

    def begin_fallback(self, case: Case, cloud: CloudLlm) -> Trial:
        """Make the package of a ``falls_back`` test ready, and its app behind ``cloud``; nothing is loaded or started.

        :raises UsageError: the chip is one of the test's own, where an app has no reason to fall back.
        :raises CannlmError: device or build failed.
        """
        from pytest_cannlm.compat import chips
        from pytest_cannlm.harness.fallback import Trial

        marker = case.falls_back
        assert marker is not None
        device = self.device(case.device).info
        chip = chips.normalize(marker.chip or device.chip)
        allowed = [chips.normalize(name) for name in case.chips]
        if chip in allowed:
            raise UsageError(
                f"falls_back: {chip} is on the test's list of chips, so an app has no reason to fall back",
                field="chip",
                found=f"{chip} ({'marker' if marker.chip else f'the device {device.name}'})",
                expected=f"a chip other than {', '.join(allowed)}",
                remedy="Name one with falls_back(chip=...)",
            )
        built_for = replace(device, chip=allowed[0])
        package = self.package(case, built_for)
        if case.package is not None:
            elsewhere.refuse_broken(case.package, self.target(case, built_for))
        trial = Trial(
            case=case,
            chip=chip,
            package=package,
            marker=marker,
            cloud=cloud,
            scratch=self.settings.cache_folder / "relabelled",
        )
        self.npu.attach(None, why_none=f"nothing is loaded on {chip}: the test asserts that the app falls back")
        cloud.attach(trial)
        return trial

    def end(self) -> None:
        """The running test ended."""
        self.npu.attach(None)

    def device(self, spec: DeviceSpec) -> DeviceLike:
        """The device that ``spec`` names, opened on first use."""
        return self._devices.get(spec.text, f"the device {spec.text}", lambda: self.rooms.open_device(spec))

    def device_info(self, spec: DeviceSpec) -> DeviceInfo | None:
        """Facts about a device, where it was opened."""
        device = self._devices.made(spec.text)
        return None if device is None else device.info

    def package(self, case: Case, device: DeviceInfo) -> PackageFolder:
        """The package of a test for ``device``: the one that its model is, else built on first use."""
        if case.package is not None:
            return case.package
        recipe = self.recipe(case, device)
        what = f"the package of {case.model} ({case.scheme})"
        return self._packages.get(
            recipe, what, lambda: self.rooms.build(recipe, self.settings.cache_folder, self.progress)
        )

    def checkpoint(self, model: str) -> Path:
        """The checkpoint of a model, fetched on first use where it is not on this machine."""
        return self._models.get(
            model,
            f"the model {model}",
            lambda: self.rooms.find_model(model, self.settings.cache_folder, self.progress),
        )

    def recipe(self, case: Case, device: DeviceInfo) -> Recipe:
        """What to build for ``case``: the device decides chip, CANN version and, unless overridden, the converter."""
        from pytest_cannlm.build import Recipe

        if device.cann is None:
            raise DeviceError(
                f"the device {device.name} does not tell its CANN version, so no package can be built for it"
            )
        return Recipe(
            model=short_name(case.model),
            checkpoint=self.checkpoint(case.model),
            scheme=case.scheme,
            context=case.context,
            chip=device.chip,
            cann=device.cann,
            converter=case.converter or ("simulated" if device.simulated else "omg"),
        )

    def target(self, case: Case, device: DeviceInfo) -> Target:
        """What the gate holds a package against."""
        from pytest_cannlm.compat.gate import Target
        from pytest_cannlm.compat.pairs import read_pairs

        return Target(
            chip=device.chip,
            cann=device.cann,
            device_version=device.device_version,
            simulated=device.simulated,
            policy=self.settings.cann_policy,
            on_unknown=self.settings.cann_unknown,
            chips=case.chips,
            version_pairs=read_pairs(self.settings.version_pairs),
        )

    def reference(self, run: Run, against: str) -> Reference:
        """The reference of a test's package, made on first use.

        ``against`` is "float" for the model's own weights, "quantized" for what the package's codes stand for, or the
        path of another checkpoint.

        :raises UsageError: "float", and the package was made elsewhere: nobody knows from which checkpoint.
        """
        if against == "float" and run.case.package is not None:
            raise UsageError(
                "the float reference is made from the checkpoint, and the test names a package that was made elsewhere",
                file=run.package.package,
                field="against",
                found='"float"',
                expected="the path of the checkpoint",
                remedy='Give the checkpoint that the package was made from: parity(against="PATH")',
            )
        if against == "quantized":
            checkpoint = None
        else:
            checkpoint = self.checkpoint(run.case.model if against == "float" else against)
        return self._references.get(
            (run.package.package, checkpoint),
            f"the {against} reference",
            lambda: self.rooms.reference(run.package, checkpoint, self.settings.cache_folder, self.progress),
        )

    def close(self) -> None:
        """Close every device; safe after a crash and when called twice."""
        self.end()
        for device in self._devices.values():
            with suppress(CannlmError):
                device.close()

    def _check_chip(self, case: Case, device: DeviceInfo) -> None:
        from pytest_cannlm.compat import chips

        allowed = [chips.normalize(chip) for chip in case.chips]
        if chips.normalize(device.chip) not in allowed:
            raise NotRunError(
                f"the device {device.name} is a {device.chip}, and the test runs on {', '.join(allowed)} only"
            )


def short_name(model: str) -> str:
    """A model's name for files and reports: a catalogue name as it is, of a path its last part without ``.gguf``."""
    return Path(model).name.removesuffix(".gguf")


class Once(Generic[K, T]):
    """Values made once per key; a failure is raised once and is from then on the reason why a test is not run."""

    def __init__(self) -> None:
        self._made: dict[K, T] = {}
        self._failed: dict[K, CannlmError] = {}

    def get(self, key: K, what: str, make: Callable[[], T]) -> T:
        """The value of ``key``, made by ``make`` on first use."""
        if key in self._failed:
            raise NotRunError(f"{what} failed in an earlier test: {self._failed[key].message}")
        if key not in self._made:
            try:
                with environment_errors(what):
                    self._made[key] = make()
            except CannlmError as error:
                self._failed[key] = error
                raise
        return self._made[key]

    def made(self, key: K) -> T | None:
        """The value of ``key`` if it was made."""
        return self._made.get(key)

    def broke(self, key: K, error: CannlmError) -> None:
        """A value that was made does not work any more."""
        self._failed[key] = error

    def values(self) -> list[T]:
        """All values that were made."""
        return list(self._made.values())


def load(client: EngineClient, package: PackageFolder, target: Target) -> None:
    """Have ``package`` loaded with fresh state: loaded if another one is (or none, after a crash), else reset.

    :raises DeviceError: a device that claims to be real has an engine that models what it reports, or the reverse.
    """
    if client.status().package == str(package.package.resolve()):
        client.reset()
        return
    report = client.load(package.package, manifest=package.manifest, target=target)
    if (report.kind == "modelled") != target.simulated:
        claim = "simulated" if target.simulated else "real"
        raise DeviceError(
            f"the device claims to be {claim}, but the figures of its engine are {report.kind}",
            field="kind",
            found=f"{report.kind} by {report.engine}",
            expected="modelled" if target.simulated else "measured",
            remedy="See which engine the device's agent was started with",
            code="ENGINE_KIND_DIFFERS",
        )
    _warn_of_unknowns(report)


def _warn_of_unknowns(report: LoadReport) -> None:
    from pytest_cannlm.compat.gate import Check

    gate = report.details.get("gate", "off")
    for check in () if gate == "off" else gate["checks"]:
        if check["outcome"] == "unknown":
            warnings.warn(f"loaded unchecked: {Check(**check).line()}", UncheckedLoadWarning, stacklevel=3)
