"""What a run is asked to do, resolved once: command line > environment > TOML > pytest's ini > default.

Every value remembers where it came from. The options are declared once, in :data:`OPTIONS`: the plugin registers them
from there, and messages and documentation read the same declarations. Marker arguments stand above all of this; they
belong to a test and are resolved in :mod:`pytest_cannlm.markers`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pytest_cannlm.errors import UsageError

OptionKind = Literal["words", "flag", "path", "choice"]

DEFAULT_SOURCE = "default"


class Option(NamedTuple):
    """One setting: ``--npu-x`` on the command line, ``npu_x`` in pytest's ini, ``CANNLM_X`` outside, ``x`` in TOML."""

    key: str
    kind: OptionKind
    help: str
    default: Any = None
    choices: tuple[str, ...] = ()
    metavar: str | None = None

    @property
    def flag(self) -> str:
        """The command-line option."""
        return "--npu" if self.key == "npu" else f"--npu-{self.key.replace('_', '-')}"

    @property
    def ini(self) -> str:
        """The key in pytest's own configuration."""
        return "npu" if self.key == "npu" else f"npu_{self.key}"

    @property
    def env(self) -> str:
        """The environment variable."""
        return f"CANNLM_{self.key.upper()}"

    def parse(self, value: object, source: str) -> Any:
        """``value`` as this option's type.

        :raises UsageError: naming the place it came from and what it may be.
        """
        if self.kind == "flag" and isinstance(value, bool):
            return value
        if self.kind == "words" and isinstance(value, Sequence):
            words = value.split() if isinstance(value, str) else list(value)
            if words and all(isinstance(word, str) and word.strip() for word in words):
                return tuple(words)
        if self.kind == "flag" and isinstance(value, str) and value.lower() in _FLAG_WORDS:
            return _FLAG_WORDS[value.lower()]
        if self.kind == "path" and isinstance(value, (str, os.PathLike)) and str(value).strip():
            return Path(value).expanduser()
        if self.kind == "choice" and value in self.choices:
            return value
        raise UsageError(
            f"{source}: {self.flag} cannot be {value!r}", field=self.key, found=repr(value), expected=self._expected()
        )

    def _expected(self) -> str:
        return {
            "flag": "true or false",
            "words": "a device, or a list of devices",
            "path": "a path",
            "choice": " or ".join(self.choices),
        }[self.kind]


_FLAG_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}

OPTIONS: tuple[Option, ...] = (
    Option(
        "npu",
        "words",
        "run NPU tests on this device: sim, sim:kirinx90?cann=6.0.1.0&ram=2GiB, hdc[:KEY], adb[:SERIAL], local. "
        "Repeatable: several of one kind are a pool, different kinds are parameters (default: sim)",
        default=("sim",),
        metavar="DEVICE",
    ),
    Option("required", "flag", "an NPU test that does not run is a failure, not a skip", default=False),
    Option("cache", "path", "folder for models and built packages (default: the user's cache folder)", metavar="DIR"),
    Option("report", "path", "write every figure, limit and verdict to this JSON file", metavar="FILE"),
    Option(
        "inconclusive",
        "choice",
        "what becomes of a verdict that the samples cannot decide: extend takes more samples, then fails",
        default="extend",
        choices=("extend", "fail", "skip", "xfail"),
    ),
    Option(
        "cann_policy",
        "choice",
        "how the CANN version of a package is compared with the device's; off says so in every result",
        default="exact",
        choices=("exact", "window", "off"),
    ),
    Option(
        "cann_unknown",
        "choice",
        "what to do where the two CANN versions cannot be compared",
        default="refuse",
        choices=("refuse", "load"),
    ),
    Option(
        "version_pairs",
        "path",
        "JSON or TOML file of versions that mean the same release in two number spaces, added to the bundled list",
        metavar="FILE",
    ),
    Option(
        "no_junit",
        "flag",
        "write no figures into JUnit XML, for readers that follow the strict xunit2 schema",
        default=False,
    ),
    Option("explain", "flag", "show where every setting and marker argument came from", default=False),
)

_BY_KEY = {option.key: option for option in OPTIONS}


@dataclass(frozen=True)
class Settings:
    """All settings of one run. ``sources`` says for each key where its value came from."""

    npu: tuple[str, ...] = ("sim",)
    required: bool = False
    cache: Path | None = None
    report: Path | None = None
    inconclusive: Literal["extend", "fail", "skip", "xfail"] = "extend"
    cann_policy: Literal["exact", "window", "off"] = "exact"
    cann_unknown: Literal["refuse", "load"] = "refuse"
    version_pairs: Path | None = None
    no_junit: bool = False
    explain: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def cache_folder(self) -> Path:
        """Where models and packages are kept: the setting, else the user's cache folder of this platform."""
        if self.cache is not None:
            return self.cache
        import platformdirs

        return Path(platformdirs.user_cache_dir("pytest-cannlm", appauthor=False))

    @property
    def devices_named(self) -> bool:
        """Whether somebody named the device; a named device that is missing is an error, never replaced."""
        return self.source("npu") != DEFAULT_SOURCE

    def source(self, key: str) -> str:
        """Where the value of ``key`` came from."""
        return self.sources.get(key, DEFAULT_SOURCE)

    def explained(self) -> list[tuple[str, str, str]]:
        """Every setting: its option, its value as text, and where it came from."""
        values = {option: getattr(self, option.key) for option in OPTIONS}
        values[_BY_KEY["cache"]] = self.cache_folder
        return [(option.flag, _shown(value), self.source(option.key)) for option, value in values.items()]

    def explain_lines(self) -> list[str]:
        """One line per setting."""
        return [f"{flag} = {value}  ({source})" for flag, value, source in self.explained()]


def resolve(
    *,
    command_line: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    files: Iterable[tuple[str, Mapping[str, object]]] = (),
    ini: Mapping[str, object] | None = None,
    folder: Path | None = None,
) -> Settings:
    """Settings from all places, the most specific first. A value of None means "not given there".

    :param command_line: by option key.
    :param environment: a whole environment; only the ``CANNLM_`` variables of :data:`OPTIONS` are read.
    :param files: (name shown to the user, table) of TOML files, the most specific first.
    :param ini: pytest's own ini values by option key.
    :param folder: what relative paths in files and ini start from; elsewhere they start where the user stands.
    :raises UsageError: for a value of the wrong type and for an unknown key in a TOML table, with the nearest name.
    """
    tables = list(files)
    for name, table in tables:
        _refuse_unknown_keys(name, table)
    environment = environment or {}
    here = Path.cwd()
    layers: list[tuple[str, Mapping[str, object], Path]] = [
        ("command line", command_line or {}, here),
        *[(o.env, {o.key: environment[o.env]}, here) for o in OPTIONS if environment.get(o.env, "").strip()],
        *[(name, table, folder or here) for name, table in tables],
        ("pytest's ini", ini or {}, folder or here),
    ]
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source, layer, base in layers:
        for key, value in layer.items():
            if key not in values and value is not None:
                parsed = _BY_KEY[key].parse(value, source)
                values[key] = base / parsed if isinstance(parsed, Path) else parsed
                sources[key] = source
    return Settings(**values, sources=sources)


def read_toml_files(folder: Path) -> list[tuple[str, Mapping[str, object]]]:
    """The tables of ``cannlm.toml`` and of ``[tool.cannlm]`` in ``pyproject.toml`` in ``folder``, for :func:`resolve`.

    :raises UsageError: for a file that is not TOML.
    """
    import tomllib

    found: list[tuple[str, Mapping[str, object]]] = []
    for name in ("cannlm.toml", "pyproject.toml"):
        path = folder / name
        if not path.is_file():
            continue
        try:
            data: Any = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{name} is not valid TOML: {error}", file=path) from None
        table = data if name == "cannlm.toml" else data.get("tool", {}).get("cannlm", {})
        if not isinstance(table, Mapping):
            raise UsageError("[tool.cannlm] must be a table", file=path, found=repr(table))
        if table:
            found.append((name, table))
    return found


def nearest(name: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """The known name that ``name`` was probably meant to be, or None. ``likeness`` is difflib's ratio, 1 = equal."""
    import difflib

    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=likeness)
    return matches[0] if matches else None


def _refuse_unknown_keys(name: str, table: Mapping[str, object]) -> None:
    for key in table:
        if key not in _BY_KEY:
            hint = nearest(key, _BY_KEY)
            raise UsageError(
                f"{name}: unknown setting {key!r}" + (f"; did you mean {hint!r}?" if hint else ""),
                expected=", ".join(_BY_KEY),
            )


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)
