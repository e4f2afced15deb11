"""Downloads from Hugging Face repositories, through the optional ``huggingface_hub``."""

from __future__ import annotations

from pathlib import Path

from pytest_cannlm.errors import EnvironmentFailure

_WANTED = ("*.safetensors", "*.safetensors.index.json", "*.jinja", "tokenizer.json")
_CONFIGURATION = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.json",
)


def download(repository: str, folder: Path) -> None:
    """Bring the weights (safetensors), configuration and tokenizer of ``repository`` into ``folder``, resuming.

    Raises ``EnvironmentFailure`` without the library or where the repository cannot be reached.
    """
    try:
        import huggingface_hub
        from huggingface_hub.utils import disable_progress_bars
    except ImportError as error:
        raise EnvironmentFailure(
            "downloads from Hugging Face need huggingface_hub", remedy="pip install pytest-cannlm[hub]"
        ) from error
    disable_progress_bars()
    try:
        huggingface_hub.snapshot_download(repository, local_dir=folder, allow_patterns=[*_WANTED, *_CONFIGURATION])
    except Exception as error:  # its errors come from three libraries and have no common base
        raise EnvironmentFailure(
            f"{repository} could not be downloaded",
            found=type(error).__name__,
            remedy="Check the network (and access rights of the repository), then run it again: it resumes",
        ) from error
