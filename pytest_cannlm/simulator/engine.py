"""The simulated LM Engine: loads a package as the device would, computes its numbers, predicts its times and memory.

Behaviour that users of the real engine have met is kept: an empty prompt fails with code 1; tokens beyond the KV cache
come back as repeated text with a success code, and only far beyond it does the call fail; a shared beginning with the
previous generation is not computed again; a package of another CANN version or chip crashes the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_cannlm import __version__
from pytest_cannlm.agent.protocol import (
    Capabilities,
    Finish,
    GenerateRequest,
    Generation,
    Kind,
    LoadReport,
    Memory,
    Times,
    TimingRequest,
    TokenEvent,
)
from pytest_cannlm.devices.spec import ON_MISMATCH, OnMismatch
from pytest_cannlm.errors import EngineError, UsageError
from pytest_cannlm.models.tokenizer import Tokenizer
from pytest_cannlm.simulator import memory
from pytest_cannlm.simulator.misfits import check_match, dying_as_the_engine_does
from pytest_cannlm.simulator.numerics import MODES, Mode, with_number_formats
from pytest_cannlm.simulator.package import LoadedPackage, read_package
from pytest_cannlm.simulator.profile import load_profile
from pytest_cannlm.simulator.sampling import Sampler, TokenChooser
from pytest_cannlm.simulator.session import DecoderSession
from pytest_cannlm.simulator.stopping import StopMatcher
from pytest_cannlm.simulator.timing import TimingModel

_DEGENERATE_TEXT = " -"
_CAPABILITIES = Capabilities(
    names=("logits", "tokenize", "modelled_timing"),
    notes={
        "token_prompt": "the public call takes text; HMS_LLMEnginePrompt_SetTokenId would be needed",
        "lora": "HIAI_LLMEngine_Executor_UpdateLora of the internal interface would be needed",
        "multimodal": "HIAI_LLMEngine_Executor_InitVisionModel of the internal interface would be needed",
        "prompt_cache": "HIAI_LLMEngine_Executor_SavePromptKVCache of the internal interface would be needed",
        "speculative": "HIAI_LLMEngine SetSpecType of the internal interface would be needed",
        "cancel": "HIAI_LLMEngine_Context_TerminateOnce of the internal interface would be needed",
    },
)


@dataclass(frozen=True)
class EngineOptions:
    """How the simulated device is set up."""

    profile: str = "kirinx90"
    mode: Mode = "faithful"
    cann: str = "6.1.1.0"
    ram_bytes: int = 32 << 30
    seed: int = 0
    threads: int | None = None
    on_mismatch: OnMismatch = "crash"
    """What becomes of a package of another CANN or chip."""

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> EngineOptions:
        """From the load request; UsageError for an unknown option or mode."""
        unknown = set(options) - set(cls.__dataclass_fields__)
        if unknown:
            raise UsageError(
                "unknown option of the simulated engine",
                field=", ".join(sorted(unknown)),
                expected="one of " + ", ".join(cls.__dataclass_fields__),
            )
        made = cls(**options)
        for name, value, known in (("mode", made.mode, MODES), ("on_mismatch", made.on_mismatch, ON_MISMATCH)):
            if value not in known:
                raise UsageError(f"unknown {name}", field=name, found=value, expected="one of " + ", ".join(known))
        return made


class SimulatedEngine:
    """Implements ``pytest_cannlm.agent.protocol.Engine``. All its figures are modelled."""

    kind: Kind = "modelled"

    def __init__(self) -> None:
        self._loaded: _Loaded | None = None
        self._base_bytes: int | None = None

    def load(self, package: str, options: Mapping[str, Any]) -> LoadReport:
        """Load a package folder; see :class:`EngineOptions`.

        Raises:
            PackageError, ContainerError: the package is broken or is not a simulated one.
            EngineError: the engine cannot use the package, or it needs more memory than the simulated device has. Where
                the real engine dies, this one ends its process.
        """
        asked = EngineOptions.parse(options)
        self._loaded = None
        profile = load_profile(asked.profile)
        with dying_as_the_engine_does():
            read = read_package(Path(package))
            check_match(read.model, chip=profile.chip, cann=asked.cann, otherwise=asked.on_mismatch)
        parts = memory.parts_of(read)
        self._base_bytes = memory.base_bytes(profile)
        needed = self._base_bytes + sum(parts.values())
        if needed > asked.ram_bytes:
            raise EngineError(
                "out of memory on the simulated device",
                file=read.folder,
                found=f"{needed} bytes needed",
                expected=f"at most {asked.ram_bytes} bytes",
                remedy="use fewer weight bits or a shorter context, or give the device more memory (ram=...)",
                code="OUT_OF_MEMORY",
            )
        timing = TimingModel(profile, read.load, read.shape, read.llm["kv_cache_max_len"], read.llm["prefill_len"])
        self._loaded = _Loaded(read, asked, timing, parts)
        return LoadReport(
            load_ms=timing.load_ms(read.file_bytes),
            kind=self.kind,
            engine=f"pytest-cannlm simulator {__version__}",
            chip=profile.chip,
            cann=asked.cann,
            details={"mode": asked.mode, "profile": profile.name, "decode_ms": timing.decode_ms},
        )

    def generate(self, request: GenerateRequest, on_token: Callable[[TokenEvent], None]) -> Generation:
        """Run one generation; token times are those of the timing model."""
        return self._ready().generate(request, on_token)

    def tokenize(self, text: str) -> list[int]:
        """Ids of ``text``, special-token texts included."""
        return self._ready().tokenizer.encode(text)

    def logits(self, tokens: Sequence[int], first: int, step: int | None = None) -> Iterator[bytes]:
        """Teacher-forced logits; forgets the context."""
        return self._ready().logits(tokens, first, step)

    def sample_times(self, request: TimingRequest) -> list[Times]:
        """Seeded times, nothing computed."""
        return self._ready().sample_times(request)

    def memory(self) -> Memory:
        """The modelled footprint."""
        if self._loaded is None:
            return Memory(self.kind, self._base_bytes, load=None, peak=None, current=0, kv_per_token=None)
        return self._loaded.memory(self._base_bytes)

    def reset(self) -> None:
        """Forget the context and its cached prefix."""
        if self._loaded is not None:
            self._loaded.reset()

    def unload(self) -> Memory:
        """Release the model; nothing is left over."""
        self._loaded = None
        return self.memory()

    def capabilities(self) -> Capabilities:
        """What the simulated engine can do beyond the public interface, and what it cannot."""
        return _CAPABILITIES

    @property
    def session(self) -> DecoderSession:
        """The session that computes the loaded package, for measuring its own speed on this host."""
        return self._ready().session

    def _ready(self) -> _Loaded:
        if self._loaded is None:
            raise EngineError("no package is loaded", remedy="load one first")
        return self._loaded


class _Loaded:
    """A loaded package: the graph with its cache, the tokenizer, the models of time and memory."""

    def __init__(
        self, package: LoadedPackage, options: EngineOptions, timing: TimingModel, parts: Mapping[str, int]
    ) -> None:
        self._package, self._options, self._timing, self._parts = package, options, timing, parts
        self.tokenizer = Tokenizer.from_json(package.tokenizer_json)
        self.session = DecoderSession(
            with_number_formats(package.graph, options.mode),
            weights_dir=package.folder,
            shape=package.shape,
            embedding=package.embedding(half=options.mode == "faithful"),
            chunk=package.llm["prefill_len"],
            threads=options.threads,
        )
        self._cached: list[int] = []  # ids whose KV is in the cache
        self._capacity: int = package.llm["kv_cache_max_len"]
        self._generations = 0
        self._worked = False
        generation = package.context["generate_options"]
        stops = generation["stop_sequence"]
        specials = self.tokenizer.special_tokens
        self._end_ids = {package.llm["eos_token_id"], *(specials[text] for text in stops if text in specials)}
        self._stop_texts = [text for text in stops if text not in specials]
        self._degenerate = self.tokenizer.encode(_DEGENERATE_TEXT)

    def reset(self) -> None:
        self.session.rewind(0)
        self._cached = []
        self._generations = 0

    def generate(self, request: GenerateRequest, on_token: Callable[[TokenEvent], None]) -> Generation:
        ids = self.tokenizer.encode(request.text)
        most = self._package.llm["max_io_tokens"]
        if not ids or len(ids) + request.max_new_tokens > most:
            what = f"{len(ids)} prompt and {request.max_new_tokens} new tokens" if ids else "an empty prompt"
            raise EngineError(
                f"Generate returned 1 for {what}", code="1", found=what, expected=f"at most {most} tokens"
            )
        shared = self._shared_prefix(ids)
        self._generations += 1
        clock = self._timing.clock(len(ids) - shared, self._options.seed, self._generations)
        chooser = self._chooser(request)
        stream = self.tokenizer.stream()
        stop = StopMatcher([] if request.ignore_eos else [*self._stop_texts, *request.stop])
        tokens: list[int] = []
        texts: list[str] = []
        times: list[float] = []
        ended = False
        self._worked = True
        while len(tokens) < request.max_new_tokens and not ended:
            token = self._next_token(ids, tokens, shared, chooser)
            tokens.append(token)
            times.append(clock.next_token())
            ended = not request.ignore_eos and token in self._end_ids
            text = stop.feed("" if ended else stream.feed(token))
            ended = ended or stop.stopped
            texts.append(text)
            on_token(TokenEvent(len(tokens), token, text, times[-1]))
        if not stop.stopped:
            texts.append(stop.feed(stream.finish()) + stop.finish())
        finish: Finish = "stop" if ended or stop.stopped else "length"
        return Generation(
            text="".join(texts),
            prompt_tokens=len(ids),
            tokens=tuple(tokens),
            finish=finish,
            times=clock.times(tuple(times)),
            kind="modelled",
            served_by=f"simulated {self._timing.profile.chip} ({self._options.mode})",
            cached_prefix_tokens=shared,
        )

    def logits(self, tokens: Sequence[int], first: int, step: int | None) -> Iterator[bytes]:
        if not 0 < len(tokens) <= self._capacity:
            raise EngineError(
                "token ids do not fit the KV cache", found=f"{len(tokens)} ids", expected=f"1 to {self._capacity}"
            )
        vocabulary = self._package.llm["vocab_size"]
        outside = [token for token in tokens if not 0 <= token < vocabulary]
        if outside:
            raise EngineError("token id outside the vocabulary", found=outside[0], expected=f"0 to {vocabulary - 1}")
        self.reset()
        self._worked = True
        for rows in self.session.evaluate(tokens, first, step):
            yield rows.astype("<f4", copy=False).tobytes()
        self.reset()

    def sample_times(self, request: TimingRequest) -> list[Times]:
        return [
            self._timing.times(request.prompt_tokens, request.new_tokens, self._options.seed, request.seed + i)
            for i in range(request.repeats)
        ]

    def memory(self, base: int | None) -> Memory:
        load = sum(size for part, size in self._parts.items() if part != "workspace")
        return Memory(
            kind="modelled",
            base=base,
            load=load,
            peak=load + (self._parts["workspace"] if self._worked else 0),
            current=load,
            kv_per_token=float(memory.kv_bytes_per_position(self._package)),
            parts=dict(self._parts),
        )

    def _next_token(self, ids: list[int], tokens: list[int], shared: int, chooser: TokenChooser) -> int:
        fed = ids[shared:] if not tokens else tokens[-1:]
        if len(ids) + len(tokens) > self._capacity:
            # the cache is full: the engine goes on, reports success, and what comes is worthless
            return self._degenerate[len(tokens) % len(self._degenerate)]
        logits = self.session.feed(fed)
        self._cached += fed
        return chooser.choose(logits, [*ids, *tokens])

    def _shared_prefix(self, ids: list[int]) -> int:
        """Positions of the previous generation that ``ids`` begin with; the last id is always computed again."""
        shared = 0
        for ours, cached in zip(ids[:-1], self._cached, strict=False):
            if ours != cached:
                break
            shared += 1
        self.session.rewind(shared)
        del self._cached[shared:]
        return shared

    def _chooser(self, request: GenerateRequest) -> TokenChooser:
        sampler = Sampler(
            request.do_sample,
            request.temperature,
            request.top_k,
            request.top_p,
            request.repetition_penalty,
            request.seed,
        )
        forbidden = sorted(self._end_ids) if request.ignore_eos else []
        return TokenChooser(sampler, self._package.llm["vocab_real_size"], forbidden)
