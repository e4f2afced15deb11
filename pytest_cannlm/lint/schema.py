"""The settings that the LM Engine reads from ``executor.json`` and ``context.json``: names, types, ranges.

Sources: the vendor's sample settings and interface description of the LM Engine, and packages that are known to load.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_cannlm.compat.package import LARGEST_COUNT, LLM_COUNTS

Kind = Literal["int", "number", "text", "bool", "texts"]

WORDS: dict[Kind, str] = {
    "int": "a whole number",
    "number": "a number",
    "text": "a text",
    "bool": "true or false",
    "texts": "a list of texts",
}


@dataclass(frozen=True)
class Setting:
    """One setting; ``low`` and ``high`` bound numbers, both included. ``section`` "" is the top of the file."""

    section: str
    key: str
    kind: Kind
    required: bool = False
    low: float = -LARGEST_COUNT - 1
    high: float = LARGEST_COUNT

    @property
    def field(self) -> str:
        """How the setting is called in messages."""
        return f"{self.section}.{self.key}" if self.section else self.key

    @property
    def expected(self) -> str:
        """Type and range in words."""
        words = WORDS[self.kind]
        if self.kind not in ("int", "number") or self.low < -LARGEST_COUNT:
            return words
        return f"{words} of at least {self.low:g}" + (
            f" and at most {self.high:g}" if self.high < LARGEST_COUNT else ""
        )

    def takes(self, value: object) -> bool:
        """Whether the engine can read ``value`` as this setting."""
        if self.kind == "texts":
            return isinstance(value, list) and all(isinstance(item, str) and item for item in value)
        if self.kind == "text":
            return isinstance(value, str) and bool(value)
        if self.kind == "bool" or isinstance(value, bool):
            return self.kind == "bool" and isinstance(value, bool)
        if not isinstance(value, (int, float) if self.kind == "number" else int):
            return False
        return self.low <= value <= self.high


def _counts(*keys: str, required: bool) -> tuple[Setting, ...]:
    return tuple(Setting("llm_config", key, "int", required, low=1) for key in keys)


COMPILED_FLAGS = ("enable_dynamic_kv_cache", "enable_lm_head_opt", "enable_lm_head_topk", "is_kv_cache_merge")
"""Flags of ``llm_config`` that describe how the graph was compiled."""

EXECUTOR_SETTINGS: tuple[Setting, ...] = (
    Setting("", "version", "int"),
    Setting("", "engine_type", "text"),
    *_counts(*LLM_COUNTS, required=True),
    *_counts("vocab_real_size", "intermediate_size", "max_position_embeddings", required=False),
    Setting("llm_config", "bos_token_id", "int", True),
    Setting("llm_config", "eos_token_id", "int", True),
    Setting("llm_config", "pad_token_id", "int"),
    Setting("llm_config", "sliding_window_len", "int", low=0),
    Setting("llm_config", "use_output_pos", "bool"),
    Setting("llm_config", "embedding_weights", "text", True),
    Setting("llm_config", "embedding_dequant_scale", "text", True),
    Setting("llm_config", "embedding_input_type", "text", True),
    Setting("llm_config", "rms_norm_eps", "number", low=0),
    Setting("llm_config", "rope_theta", "number", low=1, high=1e12),
    Setting("llm_config", "model_type", "text"),
    Setting("llm_config", "architectures", "texts"),
    Setting("llm_config", "torch_dtype", "text"),
    Setting("llm_config", "tie_word_embeddings", "bool"),
    *(Setting("llm_config", flag, "bool") for flag in COMPILED_FLAGS),
    Setting("tokenizer", "type", "text", True),
    Setting("tokenizer", "path", "text", True),
    Setting("autoregressive", "model_path", "text", True),
    Setting("autoregressive", "weight_path", "text", True),
)

CONTEXT_SETTINGS: tuple[Setting, ...] = (
    Setting("", "version", "int"),
    Setting("", "engine_type", "text"),
    Setting("generate_options", "callback_freq", "int", low=0),
    Setting("generate_options", "max_gen_tokens", "int", low=1),
    Setting("generate_options", "stop_sequence", "texts"),
    Setting("generate_options", "init_token_len", "int", low=0),
    Setting("sampler", "do_sample", "bool"),
    Setting("sampler", "seed", "int", high=2**64 - 1),
    Setting("sampler", "top-k", "int", low=0),
    Setting("sampler", "top-p", "number", low=0, high=1),
    Setting("sampler", "temperature", "number", low=0),
    Setting("sampler", "repetition_penalty", "number", low=0),
)

EXECUTOR_SECTIONS = ("llm_config", "tokenizer", "autoregressive")
CONTEXT_SECTIONS = ("generate_options", "sampler")

TOKENIZER_TYPES = ("spm", "hmb", "xlmroberta", "bpe", "qwen", "qwen2", "glm")
BPE_TYPES = ("bpe", "qwen", "qwen2")
NEWER_TOKENIZER_TYPES = ("qwen3",)
"""The engine's interface numbers this type, while its list of accepted names lacks it."""

CONTEXT_DEFAULTS = {
    "generate_options.callback_freq": "0, no callback per token",
    "generate_options.max_gen_tokens": "16 or 64, by the engine's version",
    "sampler.do_sample": "false",
    "sampler.seed": "99",
    "sampler.temperature": "1.0",
}
"""What the engine uses, without a word, for settings that are not there."""

API_CONFIG_SETTINGS = {
    "modelPath": ("autoregressive", "model_path"),
    "weightDir": ("autoregressive", "weight_path"),
    "tokenizerPath": ("tokenizer", "path"),
    "callbackFreq": ("generate_options", "callback_freq"),
    "maxGenTokens": ("generate_options", "max_gen_tokens"),
    "initTokenLen": ("generate_options", "init_token_len"),
    "stopSeq": ("generate_options", "stop_sequence"),
    "sampleFlag": ("sampler", "do_sample"),
    "seed": ("sampler", "seed"),
    "topK": ("sampler", "top-k"),
    "topP": ("sampler", "top-p"),
    "temperature": ("sampler", "temperature"),
    "repetitionPenalty": ("sampler", "repetition_penalty"),
}
"""Settings of api_config.json that say the same thing as one of the engine's own."""
