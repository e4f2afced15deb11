"""What the harness and the agent say to each other: plain dataclasses, each of them one JSON object on the wire.

Standard library only; valid for Python 3.10. All times are milliseconds on the engine's own monotonic clock (a virtual
clock where the engine is modelled), counted from the moment the request reached the engine; all sizes are bytes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from pytest_cannlm.errors import UsageError

Kind = Literal["measured", "modelled"]
Finish = Literal["stop", "length", "length?"]

TIMEOUT_HEADER = "X-Cannlm-Timeout"
"""HTTP header with the time limit of a call, in seconds."""

T = TypeVar("T")


def to_wire(value: Any) -> Any:
    """A dataclass of this module as JSON-ready data."""
    return dataclasses.asdict(value)


def from_wire(cls: type[T], data: Mapping[str, Any]) -> T:
    """Rebuild a dataclass of this module; unknown keys are ignored: a newer agent can talk to an older harness."""
    names = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    known = {key: value for key, value in data.items() if key in names}
    for key, value in known.items():
        if key == "times" and isinstance(value, Mapping):
            known[key] = from_wire(Times, value)
        elif isinstance(value, list):
            known[key] = tuple(value)
    return cls(**known)


@dataclass(frozen=True)
class Times:
    """Instants of one generation, ms on the engine's clock since the request arrived (``request`` = 0)."""

    prefill_start: float
    prefill_end: float | None
    """None where the engine does not expose it."""
    tokens: tuple[float, ...]
    """When token i was chosen and available, i = 1..N."""
    end: float


@dataclass(frozen=True)
class GenerateRequest:
    """One generation. ``text`` is the finished prompt: the engine applies no chat template.

    A value of the wrong type, or one that no engine takes, is a :class:`UsageError` naming the field.
    """

    text: str
    max_new_tokens: int
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 20
    top_p: float = 0.95
    seed: int = 99
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    """Stop sequences in addition to those of the package's context.json."""
    ignore_eos: bool = False
    """End-of-text suppressed: exactly ``max_new_tokens`` tokens, for timing."""
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        _need_whole(self, max_new_tokens=1, seed=0)
        _need(self, "text", isinstance(self.text, str) and _is_unicode(self.text), "a text that UTF-8 can hold")
        _need(self, "top_k", _is_whole(self.top_k), "a whole number")
        for name in ("temperature", "top_p", "repetition_penalty"):
            _need(self, name, _is_number(getattr(self, name)), "a finite number")
        for name in ("do_sample", "ignore_eos"):
            _need(self, name, isinstance(getattr(self, name), bool), "true or false")
        texts = isinstance(self.stop, tuple) and all(isinstance(text, str) for text in self.stop)
        _need(self, "stop", texts, "texts")
        _need(self, "timeout_s", _is_number(self.timeout_s) and self.timeout_s > 0, "a number of seconds above 0")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, as broken command lines and files give
        return False
    return True


@dataclass(frozen=True)
class TokenEvent:
    """One token as it is produced. ``text`` is the newly finished text; it can be empty inside a UTF-8 character."""

    index: int
    token: int
    text: str
    time_ms: float


@dataclass(frozen=True)
class Generation:
    """One prompt and the tokens that came back."""

    text: str
    prompt_tokens: int
    tokens: tuple[int, ...]
    """Generated ids, the closing end-of-text id included if there was one."""
    finish: Finish
    times: Times
    kind: Kind
    served_by: str
    """Who computed this, for example "simulated KirinX90 (faithful)"."""
    cached_prefix_tokens: int = 0
    """Prompt tokens whose KV came from an earlier generation of the same context."""
    return_code: int = 0
    """What the engine returned; 0 alone proves nothing."""


@dataclass(frozen=True)
class TimingRequest:
    """Ask a modelled engine for the times of generations that it does not compute again. Checked like the other."""

    prompt_tokens: int
    new_tokens: int
    repeats: int
    seed: int

    def __post_init__(self) -> None:
        _need_whole(self, prompt_tokens=1, new_tokens=1, repeats=1, seed=0)


@dataclass(frozen=True)
class LoadReport:
    """What loading a package gave."""

    load_ms: float
    kind: Kind
    engine: str
    """Name and version of the engine."""
    chip: str
    cann: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Memory:
    """Footprint of the engine's process on the device, bytes. ``None`` = not observable, never zero."""

    kind: Kind
    base: int | None
    """Before the engine was loaded."""
    load: int | None
    """After load, before the first request, minus ``base``."""
    peak: int | None
    """Highest of load, prefill and decode so far, minus ``base``."""
    current: int | None
    """Now, minus ``base``."""
    kv_per_token: float | None
    """Bytes per position of the KV cache; from loads of different length where the cache is static."""
    parts: dict[str, int] = field(default_factory=dict)
    """What ``load`` and ``peak`` consist of, where the engine can tell."""


@dataclass(frozen=True)
class Capabilities:
    """What this engine can do beyond load and generate; markers with ``requires=`` look here."""

    names: tuple[str, ...]
    """Of: logits, tokenize, modelled_timing, token_prompt, lora, multimodal, cancel, prompt_cache, speculative."""
    notes: dict[str, str] = field(default_factory=dict)
    """Per missing capability: which interface would be needed."""


class Engine(Protocol):
    """What executes a package. One engine lives in one worker process; calls never overlap.

    An engine raises ``pytest_cannlm.errors.EngineError`` for a failure that it reports itself. It may also crash or
    hang: the supervisor turns both into results.
    """

    kind: Kind

    def load(self, package: str, options: Mapping[str, Any]) -> LoadReport:
        """Load the package folder. ``options`` are the engine's own (simulated: profile, mode, cann, ram, ...)."""

    def generate(self, request: GenerateRequest, on_token: Callable[[TokenEvent], None]) -> Generation:
        """Run one generation and report every token as it is produced."""

    def tokenize(self, text: str) -> list[int]:
        """Ids that the engine would feed for ``text`` (capability ``tokenize``)."""

    def logits(self, tokens: Sequence[int], first: int, step: int | None = None) -> Iterator[bytes]:
        """Teacher-forced logits for positions ``first``.. of ``tokens``: little-endian float32 rows as long as the
        vocabulary, in chunks of whole rows (capability ``logits``). From ``first`` on ``step`` positions are fed at a
        time, by default those of a prefill step; 1 goes the way of decoding."""

    def sample_times(self, request: TimingRequest) -> list[Times]:
        """Seeded times of ``repeats`` generations, nothing computed (capability ``modelled_timing``)."""

    def memory(self) -> Memory:
        """The footprint now."""

    def reset(self) -> None:
        """Forget contexts and cached prefixes, keep the model."""

    def unload(self) -> Memory:
        """Release the model; the returned ``current`` is what is left over."""

    def capabilities(self) -> Capabilities:
        """What this engine can do."""


@dataclass(frozen=True)
class AgentStatus:
    """What the agent is doing; answered at once, also while the engine works."""

    supervisor: int
    """Process id of the supervisor."""
    worker: int | None
    """Process id of the process that holds the engine; None when there is none."""
    package: str | None
    """The loaded package folder."""
    busy: str | None
    """The engine operation that runs now."""
    loads: int
    """How many packages were handed to an engine since the agent started; gate refusals are not among them."""
    crashes: int
    """How many workers died or hung since the agent started."""
    versions: dict[str, str] = field(default_factory=dict)
    """Engine, chip, CANN, Python, agent."""


def _need_whole(request: object, **least: int) -> None:
    for name, lowest in least.items():
        value = getattr(request, name)
        _need(request, name, _is_whole(value) and value >= lowest, f"a whole number of at least {lowest}")


def _need(request: object, name: str, good: bool, expected: str) -> None:
    if not good:
        value = getattr(request, name)
        raise UsageError(f"{name} cannot be {value!r}", field=name, found=repr(value), expected=expected)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
