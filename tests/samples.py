"""Where the folder with real sample files is, if it is there at all; the suite passes without it."""

import os
from pathlib import Path


def samples_dir() -> Path | None:
    """The samples folder: ``CANNLM_SAMPLES``, else ``shared/samples`` beside the checkout, else None."""
    named = os.environ.get("CANNLM_SAMPLES")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "samples"
    return folder if folder.is_dir() else None
