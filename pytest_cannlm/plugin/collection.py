"""From collected tests to cases: markers read and checked, lists fanned out into parameters, mistakes gathered.

Nothing here opens a device, a model file or the network.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from pytest_cannlm.compat import chips
from pytest_cannlm.errors import CannlmError, UsageError
from pytest_cannlm.markers import MARKERS, FallsBack, Layer, MemoryCeiling, NpuMarker, Parity, RefusesLoad, TokenLatency
from pytest_cannlm.plugin.names import CASE
from pytest_cannlm.settings import Settings, nearest

if TYPE_CHECKING:
    from pytest_cannlm.devices import DevicePool, DeviceSpec
    from pytest_cannlm.harness.case import Case

VARIANT = "npu_variant"
"""The parameter that carries one choice out of the lists of a marker and the kinds of devices."""
SOURCES: pytest.StashKey[list[str]] = pytest.StashKey()
"""Where every marker argument of a test came from, for ``--npu-explain``."""

READ: pytest.StashKey[list[pytest.Mark]] = pytest.StashKey()
"""The markers of a test that were read and checked at collection."""

_LONGEST_ID = 60
M = TypeVar("M")


@dataclass(frozen=True)
class Variant:
    """One choice: which kind of device, and the one value of every argument that was given as a list."""

    device_kind: str | None
    chosen: Mapping[str, Any]


def device_pools(settings: Settings) -> tuple[DevicePool, ...]:
    """The devices of the run by kind; several of one kind are a pool, different kinds are parameters."""
    from pytest_cannlm.devices import parse_device, pool_devices

    return pool_devices(parse_device(text) for text in settings.npu)


def layers_of(node: pytest.Item | pytest.Collector, name: str) -> list[Layer]:
    """All markers of that name around ``node``, from the outermost to the innermost.

    :raises UsageError: two of them stand in one place, where neither could be said to override the other.
    """
    layers = []
    for place, marks in itertools.chain.from_iterable(map(_places, node.listchain())):
        same = [mark for mark in marks if mark.name == name]
        if len(same) > 1:
            MARKERS[name].refuse(f"stands twice on one {place.split()[0]}; give all arguments in one")
        layers += [Layer(mark.args, mark.kwargs, place) for mark in same]
    return layers


def fan_out(metafunc: pytest.Metafunc, settings: Settings) -> None:
    """Make parameters of list arguments and of device kinds, with ids that every process agrees on."""
    marks = {mark.name for mark in metafunc.definition.iter_markers()}
    if NpuMarker.name not in marks:
        return
    try:
        marker = NpuMarker.parse(layers_of(metafunc.definition, NpuMarker.name))
        kinds = [pool.kind for pool in device_pools(settings)]
    except UsageError:
        return  # the same error is raised with its place once everything is collected
    lists = marker.fanned_out()
    if not lists and len(kinds) == 1:
        return
    devices: list[str | None] = list(kinds) if len(kinds) > 1 else [None]
    variants = [
        Variant(device, dict(zip(lists, values, strict=True)))
        for device in devices
        for values in itertools.product(*lists.values())
    ]
    metafunc.fixturenames.append(VARIANT)
    metafunc.parametrize(VARIANT, variants, ids=[_id_of(variant) for variant in variants])


def read_cases(items: Sequence[pytest.Item], config: pytest.Config, settings: Settings, worker: int) -> None:
    """Put a :class:`Case` into the stash of every NPU test.

    :raises pytest.UsageError: listing every mistake in every test's markers, with file and line.
    """
    problems = []
    pools: tuple[DevicePool, ...] = ()
    for item in items:
        names = {mark.name for mark in item.iter_markers()}
        if names.isdisjoint(MARKERS):
            continue
        if NpuMarker.name not in names and not names & set(MARKERS) - _of_others(config):
            item.stash[READ] = _own_marks(item)
            continue
        try:
            pools = pools or device_pools(settings)
            _refuse_misspelled(names, config)
            item.stash[CASE], item.stash[SOURCES] = _case_of(item, names, pools, worker)
            item.stash[READ] = _own_marks(item)
        except CannlmError as error:
            file, line, _ = item.location
            problems.append(f"{file}:{(line or 0) + 1}: {item.name}: {error}")
    if problems:
        raise pytest.UsageError(*dict.fromkeys(problems))


def refuse_misspelled_selection(config: pytest.Config) -> None:
    """``-m npuu`` selects nothing without a word; say what was probably meant."""
    expression = str(config.getoption("markexpr", "") or "")
    try:
        _refuse_misspelled(set(re.findall(r"[^\W\d]\w*", expression)), config)
    except UsageError as error:
        raise pytest.UsageError(f"-m {expression!r} selects no test: {error}") from None


def refuse_late_markers(item: pytest.Item) -> None:
    """Raise :class:`UsageError` for markers that came after collection: nobody read them, so they assert nothing."""
    read = item.stash.get(READ, [])
    late = {mark.name for mark in _own_marks(item) if not any(mark is other for other in read)}
    if late:
        raise UsageError(
            f"marker {', '.join(sorted(late))} was added after collection, and so asserts nothing",
            remedy="Put it on the test, its class or its module, or in pytestmark",
        )


def _own_marks(item: pytest.Item) -> list[pytest.Mark]:
    return [mark for mark in item.iter_markers() if mark.name in MARKERS]


def group_by_placement(items: list[pytest.Item]) -> None:
    """Reorder NPU tests among themselves so that those of one package and device follow each other.

    An engine holds one package; alternating between two would load each again and again. All other tests keep their
    places, and so does the order of tests of one package.
    """
    places = [index for index, item in enumerate(items) if CASE in item.stash]
    rank: dict[object, int] = {}
    for index in places:
        rank.setdefault(items[index].stash[CASE].placement, len(rank))
    ordered = sorted((items[index] for index in places), key=lambda item: rank[item.stash[CASE].placement])
    for index, item in zip(places, ordered, strict=True):
        items[index] = item


def _case_of(item: pytest.Item, names: set[str], pools: Sequence[DevicePool], worker: int) -> tuple[Case, list[str]]:
    from pytest_cannlm.harness.case import Case

    if NpuMarker.name not in names:
        present = ", ".join(sorted(names & set(MARKERS)))
        raise UsageError(
            f"marker {present} needs the marker npu beside it: nothing would be run, and so nothing checked",
            expected=NpuMarker.signature(),
        )
    markers = {name: MARKERS[name].parse(layers_of(item, name)) for name in MARKERS if name in names}
    npu = markers[NpuMarker.name]
    assert isinstance(npu, NpuMarker)
    callspec = getattr(item, "callspec", None)
    variant = callspec.params.get(VARIANT) if callspec else None
    if variant is None:
        variant = Variant(None, {})
    loose = set(npu.fanned_out()) - set(variant.chosen)
    if loose:
        npu.refuse(f"has a list for {', '.join(sorted(loose))} where no parameters can be made of it; give one value")
    pool = next(pool for pool in pools if variant.device_kind in (None, pool.kind))
    chosen: dict[str, Any] = {name: getattr(npu, name) for name in npu.arguments()} | dict(variant.chosen)
    device = pool.pick(worker)
    refuses, falls_back = _optional(RefusesLoad, markers), _optional(FallsBack, markers)
    if falls_back is not None:
        _check_fallback(falls_back, npu, refuses, device)
    case = Case(
        device=device,
        **chosen,
        given=npu.sources,
        latency=_optional(TokenLatency, markers),
        memory=_optional(MemoryCeiling, markers),
        parity=_optional(Parity, markers),
        refuses=refuses,
        falls_back=falls_back,
    )
    return case, [marker.explain() for marker in markers.values()]


def _check_fallback(marker: FallsBack, npu: NpuMarker, refuses: RefusesLoad | None, device: DeviceSpec) -> None:
    """What makes no sense beside ``falls_back``. A limit from a class or module does: it is not applied."""
    if refuses is not None:
        marker.refuse("cannot stand beside refuses_load: nothing is loaded, so nothing can be refused")
    if marker.chip is not None and any(chips.same_chip(marker.chip, allowed) for allowed in npu.chips):
        marker.refuse(f"names chip={marker.chip!r}, which is one of the npu marker's chips {npu.chips}")
    simulated = device.key if device.kind == "sim" else None  # of the others the key is an address
    if marker.chip is None and simulated and any(chips.same_chip(simulated, allowed) for allowed in npu.chips):
        marker.refuse(f"needs chip=: the device {device.text} is one of the npu marker's chips {npu.chips}")


def _optional(cls: type[M], markers: Mapping[str, Any]) -> M | None:
    return next((marker for marker in markers.values() if isinstance(marker, cls)), None)


def _places(node: Any) -> Iterator[tuple[str, list[pytest.Mark]]]:
    """Where markers of this node stand: each with its name and the markers there."""
    if isinstance(node, pytest.Class):
        # A class inherits the markers of its bases; each class is a place of its own.
        for cls in reversed(node.obj.__mro__):
            yield f"class {cls.__name__}", _normalized(cls.__dict__.get("pytestmark", []))
    elif isinstance(node, pytest.Module):
        yield "module", node.own_markers
    elif isinstance(node, pytest.Item):
        callspec = getattr(node, "callspec", None)
        from_parameters = list(callspec.marks) if callspec else []
        own = [mark for mark in node.own_markers if not any(mark is other for other in from_parameters)]
        yield "function", own
        yield "parameter", [mark for mark in from_parameters if isinstance(mark, pytest.Mark)]
    else:
        yield type(node).__name__.lower(), node.own_markers


def _normalized(marks: Any) -> list[pytest.Mark]:
    listed = marks if isinstance(marks, list) else [marks]
    return [mark.mark if isinstance(mark, pytest.MarkDecorator) else mark for mark in listed]


def _of_others(config: pytest.Config) -> set[str]:
    """Names of markers of ours that the project or another plugin registered too: without npu they are theirs."""
    registered = [_registered_name(line) for line in config.getini("markers")]
    return {name for name in MARKERS if registered.count(name) > 1}


def _registered_name(line: str) -> str:
    return re.split(r"[:(]", line, maxsplit=1)[0].strip()


def _refuse_misspelled(names: set[str], config: pytest.Config) -> None:
    """An unregistered marker that looks like one of ours would silently assert nothing."""
    registered = {_registered_name(line) for line in config.getini("markers")}
    for name in sorted(names - registered - {"and", "or", "not"}):
        hint = nearest(name, MARKERS, likeness=0.75)
        if hint:
            raise UsageError(f"there is no marker {name!r}; did you mean {hint!r}?", expected=MARKERS[hint].signature())


def _id_of(variant: Variant) -> str:
    parts = [] if variant.device_kind is None else [variant.device_kind]
    for name, value in variant.chosen.items():
        text = re.split(r"[\\/]", str(value).rstrip("\\/"))[-1] if name == "model" else str(value)
        parts.append("".join(c if c.isprintable() and c not in "[]:<>" else "_" for c in text)[:_LONGEST_ID])
    return "-".join(parts)
