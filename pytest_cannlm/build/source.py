"""What the later steps need of a checkpoint beside its weights, kept in the quantize step's cache entry.

With it no later step opens the checkpoint again, and a second run does not open it at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pytest_cannlm.errors import PackageError
from pytest_cannlm.models.config import DecoderConfig
from pytest_cannlm.models.rope import Rope, Yarn
from pytest_cannlm.models.tokenizer import Tokenizer, TokenizerSpec

_FILE = "source.json"


def config_from_json(data: Mapping[str, Any]) -> DecoderConfig:
    """A configuration from what ``dataclasses.asdict`` and JSON made of it.

    Raises:
        PackageError: it was written by a version that describes decoders in another way.
    """
    try:
        yarn = data["rope"]["yarn"]
        return DecoderConfig(
            **{
                **data,
                "rope": Rope(**{**data["rope"], "yarn": yarn and Yarn(**yarn)}),
                "eos_token_ids": tuple(data["eos_token_ids"]),
                "eos_sources": tuple((source, tuple(ids)) for source, ids in data["eos_sources"]),
                "unknown_fields": tuple(data["unknown_fields"]),
            }
        )
    except (KeyError, TypeError) as error:
        raise PackageError(
            "the model's configuration was written by another version of pytest-cannlm",
            field="model.config",
            found=error,
            remedy="build the package again",
        ) from error


@dataclass(frozen=True)
class Source:
    """Configuration and tokenizer of a checkpoint."""

    config: DecoderConfig
    spec: TokenizerSpec

    def save(self, folder: Path) -> None:
        """Keep it in ``folder``."""
        document = {"config": asdict(self.config), "tokenizer": asdict(self.spec)}
        (folder / _FILE).write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Source:
        """Read it back from ``folder``."""
        document = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        return cls(config_from_json(document["config"]), TokenizerSpec(**document["tokenizer"]))

    def end_of_text(self) -> list[str]:
        """Texts of every end-of-text id: the engine takes a single id, the rest go in as stop sequences."""
        tokenizer = Tokenizer(self.spec)
        texts = (tokenizer.token_text(token) for token in self.config.eos_token_ids)
        return [text for text in texts if text]

    def token_count(self) -> int:
        """Leading rows of the embedding that stand for tokens; the rest is padding."""
        return min(Tokenizer(self.spec).id_limit, self.config.vocab_size)
