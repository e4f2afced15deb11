"""What deciding costs on the largest packages, counted by the operating system where it counts."""

import os
import struct
import tracemalloc
from pathlib import Path

import pytest
from packages import HIDDEN, VOCAB, executor, write_json, write_manifest, write_package

from pytest_cannlm.compat.gate import READ_LIMIT, Target, decide
from pytest_cannlm.container import wire
from pytest_cannlm.container.kirin import task_info_v2
from pytest_cannlm.container.layout import SIMULATED_MARK, HeaderFields
from pytest_cannlm.container.modeldef import TensorIO, encode_model_def
from pytest_cannlm.container.writer import Partition, write_container

SIM = Target(chip="KirinX90", cann="6.1.1.0", simulated=True)
FOUR_GIB = 4 << 30
COUNTERS = Path("/proc/self/io")


def grow(path: Path, size: int) -> None:
    """A file of that size that takes no room; skips where the file system has no such files."""
    path.touch()
    try:
        os.truncate(path, size)
    except OSError as error:
        pytest.skip(f"no sparse files here: {error}")
    if hasattr(path.stat(), "st_blocks") and path.stat().st_blocks * 512 > 1 << 20:
        pytest.skip("no sparse files here")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A package with 4 GiB of weights and a MODEL_DEF of 4 MB, as deep and wide as a model of 7e9 parameters."""
    folder = write_package(tmp_path / "package")
    caches = [
        TensorIO(f"past_{kind}_in{i}", "float16", (4096, 8, 1, 128)) for i in range(32) for kind in ("key", "value")
    ]
    inputs = [TensorIO("input_embed", "int8", (1, -1, HIDDEN)), TensorIO("position_ids", "int32", (1, -1)), *caches]
    model = encode_model_def(
        name="large",
        inputs=inputs,
        outputs=[TensorIO("lm_logits", "float", (1, -1, VOCAB)), *caches],
        attrs={"atc_version": "6.1.1.0", "soc_version": "KirinX90"},
        weight_size=FOUR_GIB,
    )
    constant = wire.bytes_field(1, "value") + wire.bytes_field(2, wire.bytes_field(7, bytes(1000)))
    ops = b"".join(
        wire.bytes_field(
            6, wire.bytes_field(1, f"const{i}") + wire.bytes_field(2, "Const") + wire.bytes_field(10, constant)
        )
        for i in range(4000)
    )
    write_container(
        folder / "tiny.omc",
        header=HeaderFields(layout="K", modeltype=4, userdefineinfo=SIMULATED_MARK),
        partitions=[Partition(0, model + wire.bytes_field(7, ops)), Partition(2, task_info_v2(10))],
    )
    assert (folder / "tiny.omc").stat().st_size > 4_000_000
    data = executor()
    data["llm_config"] |= {
        "kv_cache_max_len": 4096,
        "num_attention_kv_heads": 8,
        "num_attention_head_dims": 128,
        "num_hidden_layers": 32,
    }
    write_json(folder / "executor.json", data)
    grow(folder / "SubGraph_0.weight", FOUR_GIB)
    return folder


def test_four_gibibytes_of_weights_and_four_megabytes_of_graph(large: Path) -> None:
    manifest = write_manifest(large.parent / "manifest.json", files={"SubGraph_0.weight": {"bytes": FOUR_GIB}})
    decision = decide(large, SIM, manifest=manifest)
    assert decision.answer == "load", decision.explain()
    assert 0 < decision.bytes_read <= READ_LIMIT
    tracemalloc.start()
    decide(large, SIM, manifest=manifest)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_weights_that_lack_one_byte(large: Path) -> None:
    os.truncate(large / "SubGraph_0.weight", FOUR_GIB - 1)
    decision = decide(large, SIM)
    assert (decision.answer, decision.code) == ("refuse", "PACKAGE_DAMAGED")
    assert f"{FOUR_GIB - 1} bytes" in decision.explain()


@pytest.mark.skipif(not COUNTERS.exists(), reason="this system does not count what a process reads")
@pytest.mark.parametrize("state", ["whole", "executor", "manifest", "both", "container"])
def test_no_more_is_read_than_is_counted(large: Path, state: str) -> None:
    manifest = write_manifest(large.parent / "manifest.json", files={})
    if state in ("executor", "both"):
        path = large / "executor.json"
        path.write_bytes(path.read_bytes().ljust(1 << 20))
    if state in ("manifest", "both"):
        manifest.write_bytes(manifest.read_bytes()[:-1] + b', "rest": "' + b"x" * (1 << 20) + b'"}')
    if state == "container":
        with (large / "tiny.omc").open("r+b") as file:
            file.seek(256)
            file.write(struct.pack("<I", 35))
    decide(large, SIM, manifest=manifest)  # what it imports and keeps is read once
    before = read_by_this_process()
    own = read_by_this_process() - before
    decision = decide(large, SIM, manifest=manifest)
    read = read_by_this_process() - before - 2 * own
    assert read <= decision.bytes_read + 1024 <= READ_LIMIT + 1024


def read_by_this_process() -> int:
    return int(COUNTERS.read_text(encoding="ascii").split()[1])


@pytest.mark.parametrize("models", [4096, 1 << 31])
def test_very_many_models_in_one_file(tmp_path: Path, models: int) -> None:
    path = tmp_path / "m.om"
    model = encode_model_def(name="m", inputs=[], outputs=[], attrs={}, weight_size=0)
    header = HeaderFields(layout="A2", table_bits=64, model_num=4096)
    write_container(path, header=header, partitions=[Partition(0, model, group) for group in range(4096)])
    if models > 4096:
        data = bytearray(path.read_bytes())
        struct.pack_into("<I", data, 156, models)
        path.write_bytes(data)
    decision = decide(path, Target(chip="Ascend310B4", cann="8.0.0", chips=("Ascend310B4",)))
    assert decision.code == ("OM_READ_LIMIT" if models == 4096 else "OM_BAD_PARTITION_TABLE")
    assert decision.bytes_read <= READ_LIMIT
