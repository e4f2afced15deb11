"""Reading an ONNX file without its external data; what is not an ONNX model is named for what it is."""

from __future__ import annotations

from pathlib import Path

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from pytest_cannlm.errors import BadInputError
from pytest_cannlm.models.sniff import sniff

_EXPECTED = "an ONNX model"
_HERE = "Give the .onnx file that the converter would get"


def read_model(path: Path) -> onnx.ModelProto:
    """The model in ``path``, which must be smaller than protobuf's own limit.

    Raises:
        BadInputError: it is something else, or damaged.
        EnvironmentFailure: it cannot be read.
    """
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing"
        raise BadInputError("there is no such file", file=path, found=found, expected=_EXPECTED)
    content = sniff(path)
    # Files that begin with another field, or with a version of the format from the future, have no known first bytes.
    if content.kind not in ("onnx", "unknown"):
        remedy = _HERE if content.kind in ("om", "gguf", "safetensors", "json", "pickle") else content.remedy
        raise BadInputError(f"this file is {content.words}", file=path, expected=_EXPECTED, remedy=remedy)
    damaged = BadInputError(
        "the ONNX model is damaged" if content.kind == "onnx" else f"this file is {content.words}",
        file=path,
        expected=_EXPECTED,
        remedy="Fetch it again, or export it again" if content.kind == "onnx" else _HERE,
    )
    try:
        model = onnx.load_model_from_string(path.read_bytes())
    except (DecodeError, UnicodeDecodeError) as error:
        raise damaged from error
    if not _texts_are_texts(model):
        raise damaged
    if not model.HasField("graph"):
        raise BadInputError("this file holds no graph", file=path, expected=_EXPECTED, remedy=_HERE)
    return model


def _texts_are_texts(model: onnx.ModelProto) -> bool:
    """Whether every text field is one: protobuf gives the bytes where a file holds something else there."""
    waiting: list[Message] = [model]
    while waiting:
        for field, value in waiting.pop().ListFields():
            values = [value] if isinstance(value, (str, bytes, Message)) else value
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                waiting.extend(values)
            elif field.type == FieldDescriptor.TYPE_STRING and not all(isinstance(text, str) for text in values):
                return False
    return True
