"""The markers: one frozen dataclass each, which declares its arguments, checks them and knows where each came from.

Markers are read at collection, device or not. pytest itself accepts any argument of any marker, so that a mistyped
limit would silently never be checked; here every mistake is an error with the signature and the nearest name.

Stacking: a marker on a function overrides the one on its class, and that the one on its module, argument by argument.
Two of the same marker on one function (or on one class, or in one module) are an error.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, TypeVar

from pytest_cannlm.arguments import (
    COLLECTIONS,
    Check,
    between,
    build_version,
    chip,
    context_length,
    count,
    each,
    number,
    one_of,
    positive,
    program,
    refusal_code,
    share,
    size,
    size_or_nothing,
    text,
)
from pytest_cannlm.compat.damage import DAMAGES
from pytest_cannlm.errors import UsageError
from pytest_cannlm.parity.names import GREEDY_TOKENS
from pytest_cannlm.settings import nearest

if TYPE_CHECKING:
    from pytest_cannlm.measure.plan import SamplingPlan

CAPABILITIES = (
    "logits",
    "tokenize",
    "modelled_timing",
    "token_prompt",
    "lora",
    "multimodal",
    "cancel",
    "prompt_cache",
    "speculative",
)
SCHEMES = ("fp16", "w8a16", "w4a16")
SCHEME_ALIASES = {"int8": "w8a16"}
CONVERTERS = ("simulated", "omg", "atc")
MOST_ROUNDS = 20
"""Rounds that one latency marker may cost: enough for p95 at 95 %, not for p99."""

M = TypeVar("M", bound="Marker")


@dataclass(frozen=True)
class Layer:
    """One marker where it stands: its arguments and what it decorates ("function", "class TestX", "module")."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    where: str


def argument(check: Check, default: Any, *, fans_out: bool = False) -> Any:
    """Declare a marker argument: how it is checked, its default, and whether a list of values makes parameters."""
    return dataclasses.field(default=default, metadata={"check": check, "fans_out": fans_out})


@dataclass(frozen=True, kw_only=True)
class Marker:
    """What all markers share: parsing from layers, and the source of every argument that somebody gave."""

    name: ClassVar[str]

    sources: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def arguments(cls) -> dict[str, dataclasses.Field[Any]]:
        """The declared arguments by name."""
        return {field.name: field for field in dataclasses.fields(cls) if "check" in field.metadata}

    @classmethod
    def signature(cls) -> str:
        """The marker as it is written, every argument with its default."""
        return f"@pytest.mark.{cls.name}({', '.join(_written(field) for field in cls.arguments().values())})"

    @classmethod
    def parse(cls: type[M], layers: Sequence[Layer]) -> M:
        """The marker from all its layers, which stand from the outermost (module) to the innermost (function).

        :raises UsageError: with the signature, for anything that the marker could not honour.
        """
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        for layer in layers:
            if layer.args:
                cls.refuse(f"takes keyword arguments only, found {', '.join(map(repr, layer.args))}")
            for key, value in layer.kwargs.items():
                values[key] = cls._checked(key, value)
                sources[key] = layer.where
        marker = cls._from_values(values, sources)
        marker.validate()
        return marker

    @classmethod
    def _from_values(cls: type[M], values: dict[str, Any], sources: dict[str, str]) -> M:
        return cls(**values, sources=sources)

    @classmethod
    def _checked(cls, key: str, value: Any) -> Any:
        fields = cls.arguments()
        if key not in fields:
            hint = nearest(key, fields)
            cls.refuse(f"has no argument {key!r}" + (f"; did you mean {hint!r}?" if hint else ""))
        field = fields[key]
        if value is None and field.default is None:
            return None
        check: Check = field.metadata["check"]
        if field.metadata["fans_out"] and isinstance(value, COLLECTIONS):
            check = each(check, least=1)
        return cls._try(key, check, value)

    @classmethod
    def _try(cls, key: str, check: Check, value: Any) -> Any:
        try:
            return check(value)
        except ValueError as error:
            cls.refuse(f"cannot have {key}={value!r}: {error}")

    def validate(self) -> None:
        """Check what single arguments cannot: whether they make sense together."""

    def explain(self) -> str:
        """Every argument that somebody gave, with the place that gave it."""
        given = [f"{key}={self._value(key)!r} ({where})" for key, where in self.sources.items()]
        return f"{self.name}: {', '.join(given) or 'all defaults'}"

    def _value(self, key: str) -> Any:
        return getattr(self, key)

    @classmethod
    def refuse(cls, problem: str) -> NoReturn:
        """Raise the usage error of this marker."""
        raise UsageError(f"marker {cls.name} {problem}", expected=cls.signature())


@dataclass(frozen=True, kw_only=True)
class NpuMarker(Marker):
    """The test runs on an NPU. Lists of ``model``, ``scheme``, ``context`` and ``converter`` make parameters."""

    name = "npu"

    model: str | tuple[str, ...] | None = argument(text, None, fans_out=True)
    scheme: str | tuple[str, ...] = argument(one_of(*SCHEMES, aliases=SCHEME_ALIASES), "w4a16", fans_out=True)
    context: int | tuple[int, ...] = argument(context_length, 2048, fans_out=True)
    chips: tuple[str, ...] = argument(each(chip, least=1), ("KirinX90",))
    requires: tuple[str, ...] = argument(each(one_of(*CAPABILITIES)), ())
    converter: str | tuple[str, ...] | None = argument(one_of(*CONVERTERS), None, fans_out=True)

    def validate(self) -> None:
        """A model must be named, on the function or around it."""
        if self.model is None:
            self.refuse("names no model; give model= here, on the class or in pytestmark")

    def fanned_out(self) -> dict[str, tuple[Any, ...]]:
        """The arguments given as lists, each with its values in a stable order."""
        listed = {name: getattr(self, name) for name, field in self.arguments().items() if field.metadata["fans_out"]}
        return {name: values for name, values in listed.items() if isinstance(values, tuple)}


@dataclass(frozen=True, kw_only=True)
class TokenLatency(Marker):
    """Limits on time per token and to the first token, on the engine's clock; judged on intervals, not on points."""

    name = "token_latency"

    decode_ms: float | None = argument(positive, None)
    ttft_ms: float | None = argument(positive, None)
    prefill_tps: float | None = argument(positive, None)
    p: float = argument(between(0, 100), 50)
    new_tokens: int = argument(count(2), 64)
    prompt: str | None = argument(text, None)
    confidence: float = argument(between(0.5, 1), 0.95)

    @classmethod
    def _checked(cls, key: str, value: Any) -> Any:
        if key == "max_regression":
            cls.refuse("cannot compare with a baseline in this version: max_regression is not available")
        return super()._checked(key, value)

    def validate(self) -> None:
        """There is a limit, and the largest affordable sample can prove the percentile."""
        if self.decode_ms is None and self.ttft_ms is None and self.prefill_tps is None:
            self.refuse("limits nothing; give decode_ms, ttft_ms or prefill_tps")
        try:
            self.plan("fail")
        except UsageError as error:
            self.refuse(f"cannot be judged: {error}")

    def plan(self, policy: Literal["extend", "fail", "skip", "xfail"]) -> SamplingPlan:
        """The sampling plan: 5 rounds of 4 generations, and as many more rounds, up to 20, as the percentile needs.

        :param policy: what becomes of an inconclusive verdict; "extend" looks at the data more than once.
        :raises UsageError: naming the number of generations that the percentile would need.
        """
        from pytest_cannlm.measure.plan import SamplingPlan, looks_for
        from pytest_cannlm.measure.stats import required_samples

        standard = SamplingPlan()
        enough = required_samples(50, self.confidence)
        if self.p != 50:
            enough = max(enough, math.ceil(required_samples(self.p, self.confidence) / standard.generations_per_round))
        return SamplingPlan(
            rounds=max(standard.rounds, min(enough, MOST_ROUNDS)),
            new_tokens=self.new_tokens,
            p=self.p,
            confidence=self.confidence,
            looks=looks_for(policy),
        )


@dataclass(frozen=True, kw_only=True)
class MemoryCeiling(Marker):
    """Limits on bytes after load, at peak, left over after unload, and growth per token of context."""

    name = "memory_ceiling"

    load: int | None = argument(size, None)
    peak: int | None = argument(size, None)
    retained: int | None = argument(size_or_nothing, None)
    kv_per_token: int | None = argument(size, None)

    def validate(self) -> None:
        """There is a limit."""
        if all(limit is None for limit in (self.load, self.peak, self.retained, self.kv_per_token)):
            self.refuse("limits nothing; give load, peak, retained or kv_per_token")


@dataclass(frozen=True, kw_only=True)
class Parity(Marker):
    """The outputs equal the reference's within the limits of a profile, overridden by limits given by metric name."""

    name = "parity"

    profile: str | None = argument(text, None)
    """A name of ``parity/profiles.toml``. None: the marker's own limits alone, or without any the scheme's profile."""
    against: str = argument(text, "float")
    prompts: tuple[str, ...] | None = argument(each(text, least=1), None)
    tokens: int = argument(count(1), 512)
    limits: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Limits by metric name, as given in the marker."""

    METRICS: ClassVar[Mapping[str, Check]] = {
        **dict.fromkeys(("kl_mean", "kl_p99", "rel_l2", "max_abs", "mean_abs", "perplexity_ratio"), positive),
        **dict.fromkeys(("top1", "top5_agreement", "top5_overlap", "first_token_match"), share),
        **dict.fromkeys(("cosine_mean", "cosine_min", "centred_cosine_mean"), share),
        **dict.fromkeys(("sqnr_db", "psnr_db"), number),
        "prefix_tokens": count(1, GREEDY_TOKENS),
    }

    @classmethod
    def signature(cls) -> str:
        """The marker as it is written, the metric names last."""
        return f"{super().signature()[:-1]}, {', '.join(f'{name}=' for name in cls.METRICS)})"

    @classmethod
    def _checked(cls, key: str, value: Any) -> Any:
        if key in cls.METRICS:
            return cls._try(key, cls.METRICS[key], value)
        if key not in cls.arguments():
            hint = nearest(key, [*cls.arguments(), *cls.METRICS])
            cls.refuse(f"has no argument and no metric {key!r}" + (f"; did you mean {hint!r}?" if hint else ""))
        return super()._checked(key, value)

    @classmethod
    def _from_values(cls, values: dict[str, Any], sources: dict[str, str]) -> Parity:
        limits = {key: values.pop(key) for key in list(values) if key in cls.METRICS}
        return cls(**values, limits=limits, sources=sources)

    def validate(self) -> None:
        """The profile is known, belongs to the kind of reference that is asked for, and gets the positions it needs."""
        from pytest_cannlm.parity.profiles import profiles

        if self.prompts is not None and self.tokens < len(self.prompts):
            self.refuse(f"compares {self.tokens} positions (tokens=), fewer than its {len(self.prompts)} prompts")
        needed = max(row.min_positions for row in profiles().rows)
        if self.tokens < needed and (self.profile is not None or not self.limits):
            self.refuse(
                f"compares {self.tokens} positions (tokens=), and a profile needs {needed}; or give limits alone"
            )
        if self.profile is None:
            return
        kinds = {row.name: row.against for row in profiles().rows}
        name = SCHEME_ALIASES.get(self.profile, self.profile)
        if name not in kinds:
            hint = nearest(name, kinds)
            self.refuse(f"knows no profile {self.profile!r}" + (f"; did you mean {hint!r}?" if hint else ""))
        if self.against in ("float", "quantized") and kinds[name] != self.against:
            self.refuse(f'profile {name!r} is against "{kinds[name]}", and against={self.against!r} was asked for')

    def _value(self, key: str) -> Any:
        return self.limits[key] if key in self.limits else getattr(self, key)


@dataclass(frozen=True, kw_only=True)
class RefusesLoad(Marker):
    """A relabelled (or damaged) copy of the package is refused: by the gate before load, or cleanly by the engine."""

    name = "refuses_load"

    cann: str | None = argument(build_version, None)
    chip: str | None = argument(chip, None)
    damage: str | None = argument(one_of(*DAMAGES), None)
    error: str | None = argument(refusal_code, None)
    at: Literal["gate", "engine"] = argument(one_of("gate", "engine"), "gate")
    within_s: float | None = argument(positive, None)

    @property
    def wrong(self) -> str:
        """Which of cann, chip and damage is wrong with the copy."""
        return next(name for name in ("cann", "chip", "damage") if getattr(self, name) is not None)

    def validate(self) -> None:
        """Exactly one thing is wrong with the copy, so that the refusal has one cause; and it can be noticed there."""
        if sum(wrong is not None for wrong in (self.cann, self.chip, self.damage)) != 1:
            self.refuse("needs exactly one of cann, chip and damage: what is wrong with the copy")
        if self.at == "engine" and self.damage is not None and not DAMAGES[self.damage].engine_notices:
            self.refuse(f'cannot be judged: no engine notices damage={self.damage!r}; use at="gate"')


@dataclass(frozen=True, kw_only=True)
class FallsBack(Marker):
    """On a chip outside ``chips`` of the marker npu, an app asks the cloud and does not open the package."""

    name = "falls_back"

    to: str = argument(one_of("cloud"), "cloud")
    chip: str | None = argument(text, None)
    app: tuple[str, ...] | Callable[..., object] | None = argument(program, None)  # noqa: RUF009 - declares a field


MARKERS: Mapping[str, type[Marker]] = {
    marker.name: marker for marker in (NpuMarker, TokenLatency, MemoryCeiling, Parity, RefusesLoad, FallsBack)
}


def _written(field: dataclasses.Field[Any]) -> str:
    return f'{field.name}="{field.default}"' if isinstance(field.default, str) else f"{field.name}={field.default!r}"
