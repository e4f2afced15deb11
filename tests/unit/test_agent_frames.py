import io

import pytest

from pytest_cannlm.agent.frames import encode, read_frame
from pytest_cannlm.errors import EnvironmentFailure


def test_frames_come_back_in_order() -> None:
    frames = [{"op": "load", "text": "模型\n"}, b"\x00\xff" * 70_000, {}, b""]
    stream = io.BytesIO(b"".join(map(encode, frames)))
    assert [read_frame(stream) for _ in frames] == frames
    assert read_frame(stream) is None


@pytest.mark.parametrize("kept", [0, 1, 4, 5, 6, 16])
def test_a_writer_that_died_in_the_middle_is_the_end(kept: int) -> None:
    assert read_frame(io.BytesIO(encode({"result": 12345})[:kept])) is None


def test_bytes_that_are_no_frame_are_an_error() -> None:
    with pytest.raises(EnvironmentFailure, match="damaged"):
        read_frame(io.BytesIO(b"Traceback (most recent call last)"))
