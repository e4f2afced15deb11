"""One test while it runs: its device, its package, its engine, and what its body asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pytest_cannlm.agent.protocol import AgentStatus, Capabilities, GenerateRequest, Generation, Kind
from pytest_cannlm.compat.places import in_package
from pytest_cannlm.errors import CannlmError, EngineCrash, EngineError, KVCacheOverflow, NotObservable, UsageError
from pytest_cannlm.harness.case import Case
from pytest_cannlm.harness.rooms import EngineClient

if TYPE_CHECKING:
    from pytest_cannlm.build import PackageFolder
    from pytest_cannlm.compat.gate import Target
    from pytest_cannlm.devices.base import DeviceInfo
    from pytest_cannlm.models.tokenizer import Tokenizer


class NotRunError(CannlmError):
    """The test does not apply to this device, or what it stands on broke earlier; it is skipped, counted and listed."""


@dataclass(frozen=True)
class Asked:
    """One generation of the body: the finished prompt text and what came back."""

    prompt: str
    generation: Generation


@dataclass
class Run:
    """Everything that one test may use; made when it starts, gone when it ends."""

    case: Case
    device: DeviceInfo
    package: PackageFolder
    client: EngineClient
    capabilities: Capabilities
    target: Target
    started: AgentStatus
    """The agent when the package was loaded and nothing had been asked."""
    asked: list[Asked] = field(default_factory=list)
    served_by: list[str] = field(default_factory=list)
    """Who computed what was generated, in the engine's own words, each once."""

    @property
    def kind(self) -> Kind:
        """What this device's figures are."""
        return "modelled" if self.device.simulated else "measured"

    @property
    def engine_label(self) -> str:
        """Who computes on this device, in the words of its engine: for figures that no generation comes with."""
        device = self.device
        return (
            f"simulated {device.chip} ({device.options.get('mode', 'faithful')})" if device.simulated else device.chip
        )

    @property
    def executor(self) -> Mapping[str, Any]:
        """The package's ``executor.json``."""
        return self.package.executor

    @property
    def context(self) -> int:
        """Positions of the KV cache, prompt and generated tokens together."""
        return self.package.context

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The package's tokenizer with the chat template from the manifest."""
        from pytest_cannlm.models.tokenizer import Tokenizer

        path = self.package.package / in_package(self.executor, self.executor["tokenizer"]["path"])
        facts = self.package.data.get("tokenizer", {})
        return Tokenizer.from_json(
            path.read_text(encoding="utf-8"),
            chat_template=facts.get("chat_template"),
            bos_token=facts.get("bos_token"),
            eos_token=facts.get("eos_token"),
            add_bos=bool(facts.get("add_bos", False)),
        )

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of the external weights: what has to be in memory to compute at all."""
        return sum(file.stat().st_size for file in self.package.package.glob("*.weight"))

    def can(self, capability: str) -> bool:
        """Whether the engine has ``capability``."""
        return capability in self.capabilities.names

    def need(self, capability: str) -> None:
        """Raise :class:`NotObservable` if the engine lacks ``capability``, naming the interface it would need."""
        if not self.can(capability):
            note = self.capabilities.notes.get(capability)
            raise NotObservable(
                f"not observable: needs {capability}, which the engine on {self.device.name} does not have",
                remedy=f"It would need {note}" if note else None,
            )

    def room(self, text: str) -> int:
        """How many tokens may be generated behind ``text``: the last one is never fed, so it needs no position.

        :raises UsageError: not even one.
        """
        prompt = len(self.tokenizer.encode(text))
        if prompt > self.context:
            raise UsageError(
                "the prompt does not fit the KV cache",
                field="context",
                found=f"{prompt} tokens",
                expected=f"at most {self.context}",
                remedy="Shorten the prompt, or build with a larger context",
            )
        return self.context - prompt + 1

    def generate(self, request: GenerateRequest, *, reuse_prefix: bool = False) -> Generation:
        """Run one generation, from an empty context unless ``reuse_prefix``, and check what the engine says of it.

        :raises KVCacheOverflow: prompt and new tokens did not fit the KV cache. The engine answers such a request with
            its success code and garbage, so the count decides: the engine's or that of the package's own tokenizer,
            whichever is larger.
        :raises EngineError: the engine failed, takes no request of so many tokens (``max_io_tokens``), or counts other
            prompt tokens than the package's tokenizer, which it claims to use.
        """
        if not reuse_prefix:
            self.client.reset()
        ids = self.tokenizer.encode(request.text)
        try:
            generation = self.client.generate(request)
        except EngineError as error:
            if isinstance(error, EngineCrash):
                raise
            most = self.executor["llm_config"].get("max_io_tokens")
            if isinstance(most, int) and len(ids) <= self.context and len(ids) + request.max_new_tokens > most:
                raise EngineError(
                    "the engine takes no request of so many tokens",
                    field="max_io_tokens",
                    found=f"{len(ids)} prompt and {request.max_new_tokens} new tokens",
                    expected=f"at most {most} together",
                    remedy="Ask for fewer new tokens (max_new_tokens), or build with a larger context",
                    code="REQUEST_TOO_LONG",
                ) from error
            if len(ids) > self.context:
                raise KVCacheOverflow(
                    f"the prompt does not fit the KV cache: {error.message}",
                    field="kv_cache_max_len",
                    found=f"{len(ids)} tokens",
                    expected=f"at most {self.context}",
                    remedy="Shorten the prompt, or build with a larger context",
                    code="KV_CACHE_OVERFLOW",
                ) from error
            raise
        if generation.served_by not in self.served_by:
            self.served_by.append(generation.served_by)
        prompt, new = max(generation.prompt_tokens, len(ids)), len(generation.tokens)
        used = prompt + max(new - 1, 0)
        if used > self.context:
            raise KVCacheOverflow(
                "prompt and generated tokens do not fit the KV cache; the text is garbage although the engine "
                f"returned {generation.return_code}",
                field="kv_cache_max_len",
                found=f"{prompt} + {new} tokens, {used} positions (the last token needs none)",
                expected=f"at most {self.context}",
                remedy="Shorten the prompt, ask for fewer tokens, or build with a larger context",
                code="KV_CACHE_OVERFLOW",
            )
        # Who puts BOS in front, engine or caller, is a question for parity.
        agreed = (len(ids), len(ids) - self.tokenizer.spec.add_bos)
        if self.can("tokenize") and generation.prompt_tokens not in agreed:
            raise EngineError(
                "the engine counts other prompt tokens than the package's tokenizer",
                field="prompt_tokens",
                found=generation.prompt_tokens,
                expected=len(ids),
                remedy="See which tokenizer the engine reads; a parity marker shows where the ids part",
                code="PROMPT_TOKENS_DIFFER",
            )
        return generation

    def ask(self, request: GenerateRequest, *, reuse_prefix: bool = False) -> Generation:
        """:meth:`generate` for the test's body: what was asked and what came back is remembered."""
        generation = self.generate(request, reuse_prefix=reuse_prefix)
        self.asked.append(Asked(request.text, generation))
        return generation
