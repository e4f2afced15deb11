"""Step 4: what stands in the folder that the LM Engine loads, and in the manifest beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_cannlm import __version__
from pytest_cannlm.build.folder import PackageFolder
from pytest_cannlm.build.recipe import Recipe
from pytest_cannlm.build.weights import Coefficients
from pytest_cannlm.compat.places import CONTEXT
from pytest_cannlm.errors import PackageError
from pytest_cannlm.models.config import DecoderConfig
from pytest_cannlm.models.families import FAMILIES
from pytest_cannlm.models.hashing import file_sha256
from pytest_cannlm.models.tensors import parameter_count
from pytest_cannlm.models.tokenizer import TokenizerSpec

MANIFEST_SCHEMA = 1

_DEFAULT_NEW_TOKENS = 128


def base_name(recipe: Recipe) -> str:
    """File name stem of a package's model files: letters, digits and underscores, as the converters demand."""
    kept = "".join(c if c.isascii() and c.isalnum() else "_" for c in f"{recipe.model}_{recipe.scheme}")
    return kept.strip("_").lower()


def embedding_stem(recipe: Recipe) -> str:
    """Stem of the two embedding files."""
    return f"{base_name(recipe)}_{recipe.prefill}_{recipe.context}"


def executor_settings(recipe: Recipe, config: DecoderConfig, tokens: int) -> dict[str, Any]:
    """executor.json: what the engine is told about the model. ``tokens`` is the number of ids that have a token."""
    return {
        "version": 1,
        "engine_type": "autoregressive",
        "llm_config": {
            "bos_token_id": _first(config.bos_token_id, *config.eos_token_ids),
            "eos_token_id": _first(*(token for _, ids in config.eos_sources for token in ids)),
            "pad_token_id": _first(config.pad_token_id),
            "kv_cache_max_len": recipe.context,
            "sliding_window_len": 0,
            "max_position_embeddings": config.max_position_embeddings,
            "num_attention_heads": config.heads,
            "num_attention_kv_heads": config.kv_heads,
            "num_attention_head_dims": config.head_dim,
            "num_hidden_layers": config.layers,
            "prefill_len": recipe.prefill,
            "decode_len": 1,
            "vocab_size": config.vocab_size,
            "vocab_real_size": tokens,
            "use_output_pos": False,
            "max_io_tokens": 2 * recipe.context,
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "rms_norm_eps": config.rms_norm_eps,
            "rope_theta": config.rope.theta,
            "model_type": config.family,
            "architectures": [config.architecture],
            "torch_dtype": config.torch_dtype,
            "tie_word_embeddings": config.tie_word_embeddings,
            "embedding_weights": f"{embedding_stem(recipe)}.embedding_weights",
            "embedding_dequant_scale": f"{embedding_stem(recipe)}.embedding_dequant_scale",
            "embedding_input_type": "int8",
        },
        "tokenizer": {"type": FAMILIES[config.family].tokenizer_type, "path": "tokenizer.json"},
        "autoregressive": {"model_path": f"{base_name(recipe)}.omc", "weight_path": "./"},
    }


def context_settings(stop: Sequence[str], *, context: int) -> dict[str, Any]:
    """context.json: how to generate unless a request says otherwise. Greedy, so that tests repeat.

    An answer takes at most half of a short KV cache of ``context`` positions, so that a prompt fits beside it.
    """
    return {
        "version": 1,
        "engine_type": "autoregressive",
        "generate_options": {
            "callback_freq": 1,
            "max_gen_tokens": min(_DEFAULT_NEW_TOKENS, context // 2),
            "stop_sequence": list(stop),
            "init_token_len": 0,
        },
        "sampler": {
            "do_sample": False,
            "seed": 99,
            "top-k": 20,
            "top-p": 0.95,
            "temperature": 0.7,
            "repetition_penalty": 1.0,
        },
    }


def manifest_of(
    *,
    recipe: Recipe,
    config: DecoderConfig,
    digest: str,
    spec: TokenizerSpec,
    coefficients: Coefficients | None,
    package: Path,
    parents: Mapping[str, str],
    tool: Mapping[str, Any],
    memo: Path,
) -> dict[str, Any]:
    """The manifest: where the package came from and what every file of it must look like.

    What the gate reads stands first: it looks at the beginning of the file only. ``coefficients`` describe the weights
    in the package, None where a vendor's ``tool`` made them; ``memo`` is the
    folder that remembers hashes.
    """
    build = recipe.facts("quantize", "export", "convert")
    if coefficients is None:  # what step 1 was asked for has no part in these weights
        del build["group_size"], build["quantizer"]
    return {
        "schema": MANIFEST_SCHEMA,
        "created_by": f"pytest-cannlm {__version__}",
        "simulated": recipe.converter == "simulated",
        "build": {
            **build,
            **_quantized(coefficients),
            **({"tool": dict(tool)} if tool else {}),
        },
        "files": {path.name: facts_of(path, memo=memo) for path in sorted(package.iterdir())},
        "model": {
            "name": recipe.model,
            "family": config.family,
            "digest": digest,
            "checkpoint": recipe.checkpoint.name,
            "parameters": parameter_count(config),
            "config": asdict(config),
        },
        **_quality(coefficients),
        "parents": dict(parents),
        "tokenizer": {
            "chat_template": spec.chat_template,
            "bos_token": spec.bos_token,
            "eos_token": spec.eos_token,
            "add_bos": spec.add_bos,
            "eos_token_ids": list(config.eos_token_ids),
            "eos_sources": {source: list(ids) for source, ids in config.eos_sources},
        },
    }


def _quantized(coefficients: Coefficients | None) -> dict[str, Any]:
    if coefficients is None:
        return {}
    matrices = coefficients.matrices
    sizes = {"group_sizes": sorted({m.group_size for m in matrices.values() if m.format == "w4"})}
    if not coefficients.sensitivity:
        return sizes
    return {**sizes, "eight_bit": [name for name in coefficients.sensitivity if matrices[name].format == "w8"]}


def _quality(coefficients: Coefficients | None) -> dict[str, Any]:
    if coefficients is None:
        return {}
    parts = [part for matrix in coefficients.matrices.values() for part in matrix.parts]
    worst = min(parts, key=lambda part: part.sqnr_db)
    return {
        "quality": {
            "sqnr_db_min": _json_number(worst.sqnr_db),
            "sqnr_db_min_tensor": worst.tensor,
            "negative_share_min": min(part.negative_share for part in parts),
            "tensors": len(parts),
        }
    }


def verify(package: PackageFolder, *, memo: Path | None = None) -> None:
    """Hold every file against the manifest's sha256, but for ``context.json``, which is the user's to change.

    Args:
        package: a package with its manifest.
        memo: folder that remembers hashes of unchanged files.

    Raises:
        PackageError: a file is missing or is not the one that was built; code PACKAGE_DAMAGED.
    """
    for name, facts in package.data["files"].items():
        if name == CONTEXT:
            continue
        file = package.package / name
        found = file_sha256(file, memo=memo) if file.is_file() else "no such file"
        if found != facts["sha256"]:
            raise PackageError(
                "a file of the package is not the one that was built",
                file=file,
                field="sha256",
                found=found,
                expected=facts["sha256"],
                remedy="build the package again",
                code="PACKAGE_DAMAGED",
            )


def facts_of(file: Path, *, memo: Path | None = None) -> dict[str, Any]:
    """What a manifest says of a file: its size in bytes and its sha256, remembered in the folder ``memo``."""
    return {"bytes": file.stat().st_size, "sha256": file_sha256(file, memo=memo)}


def _first(*ids: int | None) -> int:
    """The first id that is given; the engine has one slot each, where a checkpoint can name several or none."""
    return next((token for token in ids if token is not None), 0)


def _json_number(value: float) -> float | str:
    return value if value == value and abs(value) != float("inf") else str(value)
