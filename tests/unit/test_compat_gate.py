"""The gate: every outcome of every check, what the one line says, and what deciding costs."""

import json
import os
import struct
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from gating import assert_refused, outcome, write_real
from packages import (
    CONTEXT,
    HIDDEN,
    INPUTS,
    OUTPUTS,
    VOCAB,
    WEIGHT_BYTES,
    executor,
    write_json,
    write_manifest,
    write_omc,
    write_package,
)

from pytest_cannlm.compat.gate import READ_LIMIT, Check, Decision, Target, decide
from pytest_cannlm.compat.package import ReadCount, read_manifest
from pytest_cannlm.container import wire
from pytest_cannlm.container.kirin import relabel_omc, task_info_v2
from pytest_cannlm.container.layout import HEADER_BYTES, SIMULATED_MARK, HeaderFields
from pytest_cannlm.container.modeldef import TensorIO, encode_model_def, replace_attributes
from pytest_cannlm.container.taskinfo import encode_task_info
from pytest_cannlm.container.writer import Partition, write_container
from pytest_cannlm.errors import GateRefusal, UsageError

SIM = Target(chip="KirinX90", cann="6.1.1.0", simulated=True)
DEVICE = Target(chip="KirinX90", cann="6.1.1.0")


def test_good_package_loads(tmp_path: Path) -> None:
    package = write_package(tmp_path / "package")
    decision = decide(package, SIM, manifest=write_manifest(tmp_path / "manifest.json"))
    assert (decision.answer, decision.code) == ("load", None)
    assert [check.outcome for check in decision.checks] == ["ok"] * len(decision.checks)
    assert {check.name for check in decision.checks} == {
        "device chip", "package files", "container", "engine", "chip", "cann", "manifest", "sizes", "cache",
    }  # fmt: skip
    assert decision.reasons() == []
    decision.raise_if_refused()
    line = decision.explain()
    for text in (
        "load: ",
        "found 6.1.1.0 (atc_version of tiny.omc)",
        "expected 6.1.1.0 (CANN of the simulated KirinX90)",
    ):
        assert text in line
    assert "policy exact" in line


def test_decision_is_plain_data(tmp_path: Path) -> None:
    decision = decide(write_package(tmp_path / "p"), SIM)
    wire_form = json.loads(json.dumps(asdict(decision)))
    checks = tuple(Check(**check) for check in wire_form.pop("checks"))
    assert Decision(checks=checks, **wire_form) == decision


# Versions


def test_other_version_is_refused_with_both_versions_their_places_rule_and_remedy(tmp_path: Path) -> None:
    package = write_package(tmp_path / "p", build_version="6.0.1.0")
    assert_refused(
        decide(package, SIM),
        "CANN_VERSION_MISMATCH",
        "6.0.1.0 (atc_version of tiny.omc)",
        "6.1.1.0 (CANN of the simulated KirinX90)",
        "policy exact: both must be the same version",
        "cannlm build MODEL --cann 6.1.1.0",
    )


def test_relabelled_package_is_refused(tmp_path: Path) -> None:
    package = write_package(tmp_path / "p")
    relabel_omc(package / "tiny.omc", package / "tiny.omc", build_version="6.0.1.0")
    decision = decide(package, SIM, manifest=write_manifest(tmp_path / "manifest.json"))
    assert_refused(decision, "CANN_VERSION_MISMATCH", "while manifest.json says 6.1.1.0")


def test_window_loads_an_older_build_and_refuses_a_newer_one(tmp_path: Path) -> None:
    target = replace(SIM, policy="window")
    older = decide(write_package(tmp_path / "old", build_version="6.0.1.0"), target)
    assert older.answer == "load"
    assert "policy window" in older.explain()
    newer = decide(write_package(tmp_path / "new", build_version="6.2.0.0"), target)
    assert_refused(newer, "CANN_VERSION_MISMATCH", "6.2.0.0", "6.1.1.0", "policy window")


def test_policy_off_loads_and_says_so(tmp_path: Path) -> None:
    decision = decide(write_package(tmp_path / "p", build_version="6.0.1.0"), replace(SIM, policy="off"))
    assert decision.answer == "load"
    assert outcome(decision, "cann") == "off"
    for text in (decision.explain(), " ".join(decision.reasons())):
        assert "policy off" in text
        assert "6.0.1.0" in text
        assert "6.1.1.0" in text


@pytest.mark.parametrize("early", ["chip", "file", "container"])
def test_policy_off_is_said_in_refusals_too(tmp_path: Path, early: str) -> None:
    package = write_package(tmp_path / "p")
    target = replace(SIM, policy="off", chip="Kirin9020" if early == "chip" else "KirinX90")
    if early == "file":
        (package / "executor.json").unlink()
    elif early == "container":
        (package / "tiny.omc").write_bytes(b"")
    decision = decide(package, target)
    assert decision.answer == "refuse"
    assert "policy off" in decision.explain()


@pytest.mark.parametrize(
    ("target", "answer"),
    [(SIM, "refuse"), (DEVICE, "unknown"), (replace(DEVICE, on_unknown="load"), "load")],
)
@pytest.mark.parametrize("version", ["0.0.0", "nonsense", "7.6.0.1.220", " "])
def test_unknown_version(tmp_path: Path, target: Target, answer: str, version: str) -> None:
    mark = SIMULATED_MARK if target.simulated else b""
    header = HeaderFields(layout="K", modeltype=4, userdefineinfo=mark)
    path = write_real(tmp_path / "m.omc", header=header, atc_version=version, soc_version="KirinX90")
    decision = decide(path, target)
    assert (decision.answer, decision.code) == (answer, "CANN_VERSION_UNKNOWN")
    line = decision.explain()
    for text in (
        answer,
        "CANN_VERSION_UNKNOWN",
        version.strip() or "no build version",
        "6.1.1.0",
        "rule: ",
        "remedy: ",
    ):
        assert text in line
    if answer == "load":
        decision.raise_if_refused()
    else:
        with pytest.raises(GateRefusal):
            decision.raise_if_refused()


@pytest.mark.parametrize(
    ("built", "cann", "named", "not_named"),
    [
        ("", "6.1.1.0", "writes its version", "pairs"),
        ("0.0.0", "6.1.1.0", "writes its version", "pairs"),
        ("6.1.1.0", None, "which CANN version the target has", "pairs"),
        ("6.1.1.0", "8.0.0", "add 6.1.1.0 and 8.0.0 to a list of version pairs", "writes its version"),
    ],
)
def test_remedy_for_an_unknown_version_can_help(
    tmp_path: Path, built: str, cann: str | None, named: str, not_named: str
) -> None:
    path = write_real(tmp_path / "m.omc", atc_version=built, soc_version="KirinX90")
    remedy = decide(path, replace(DEVICE, cann=cann)).explain().partition("remedy: ")[2]
    assert named in remedy
    assert not_named not in remedy
    assert "HMS_HiAICompatibility_CheckFromFile" in remedy
    assert "cann-unknown" not in remedy


def test_device_version_that_is_not_known(tmp_path: Path) -> None:
    decision = decide(write_package(tmp_path / "p"), replace(SIM, cann=None))
    assert_refused(decision, "CANN_VERSION_UNKNOWN", "6.1.1.0", "no device version", "never equal")


def test_device_number_is_joined_by_a_pair_or_unknown(tmp_path: Path) -> None:
    target = Target(
        chip="KirinX90", cann=None, device_version="108.631.120.010", version_from="HMS_HiAI_GetVersion on the device"
    )
    path = write_real(tmp_path / "m.omc", atc_version="6.1.1.0", soc_version="KirinX90")
    unknown = decide(path, target)
    assert (unknown.answer, unknown.code) == ("unknown", "CANN_VERSION_UNKNOWN")
    assert "108.631.120.010 (HMS_HiAI_GetVersion on the device)" in unknown.explain()
    assert decide(path, replace(target, version_pairs=(("6.1.1.0", "108.631.120.010"),))).answer == "load"
    other = decide(path, replace(target, version_pairs=(("6.0.1.0", "108.631.120.010"),)))
    assert_refused(other, "CANN_VERSION_MISMATCH", "108.631.120.010")


def test_version_of_the_manifest_where_the_file_has_none(tmp_path: Path) -> None:
    path = write_real(tmp_path / "m.omc", soc_version="KirinX90")
    manifest = write_manifest(tmp_path / "manifest.json", build={"cann": "6.0.1.0"}, simulated=False)
    assert_refused(decide(path, DEVICE, manifest=manifest), "CANN_VERSION_MISMATCH", "build.cann in manifest.json")
    assert decide(path, replace(DEVICE, cann="6.0.1.0"), manifest=manifest).answer == "load"
    nowhere = decide(path, DEVICE)
    assert (nowhere.answer, nowhere.code) == ("unknown", "CANN_VERSION_UNKNOWN")


def test_two_converter_versions_in_one_file_are_both_told(tmp_path: Path) -> None:
    path = write_real(tmp_path / "m.omc", atc_version="6.1.1.0", opp_version="6.0.1.0", soc_version="KirinX90")
    assert "whose opp_version is 6.0.1.0" in decide(path, DEVICE).explain()


# Chips


@pytest.mark.parametrize("chip", ["Kirin9020", "Kirin9030", "KirinX90A", "Kirin"])
def test_model_for_another_chip_is_refused(tmp_path: Path, chip: str) -> None:
    package = write_package(tmp_path / "p", chip=chip)
    assert_refused(decide(package, SIM), "CHIP_MISMATCH", chip, "KirinX90", "tiny.omc", "--chip KirinX90")


@pytest.mark.parametrize("chip", ["KirinX90", "kirinx90", "kirin x90"])
def test_spelling_of_the_chip_does_not_matter(tmp_path: Path, chip: str) -> None:
    package = write_package(tmp_path / "p", chip=chip)
    assert decide(package, replace(SIM, chip="kirinx90")).answer == "load"


def test_chip_that_is_not_allowed_is_refused_without_opening_anything(tmp_path: Path) -> None:
    decision = decide(tmp_path / "not even there", replace(SIM, chip="Kirin9020"))
    assert_refused(decision, "CHIP_NOT_ALLOWED", "Kirin9020", "KirinX90", "not even opened")
    assert decision.bytes_read == 0
    assert len(decision.checks) == 1
    allowed = decide(
        write_package(tmp_path / "p", chip="Kirin9020"), replace(SIM, chip="kirin9020", chips=("KirinX90", "Kirin9020"))
    )
    assert allowed.answer == "load"


@pytest.mark.parametrize(
    ("task", "soc", "result"),
    [
        (task_info_v2(10), "", "ok"),
        (task_info_v2(16), "", "mismatch"),
        (task_info_v2(16), "KirinX90", "mismatch"),  # the file contradicts itself
        (task_info_v2(10), "Kirin9020", "mismatch"),  # 10 is what writers put for chips that they do not know
        (encode_task_info(14, ids=[3]), "", "unknown"),
        (encode_task_info(14, ids=[3]), "KirinX90", "ok"),
        (b"", "", "unknown"),
        (b"", "KirinX90", "ok"),
    ],
)
def test_platform_code_and_attribute(tmp_path: Path, task: bytes, soc: str, result: str) -> None:
    path = write_real(tmp_path / "m.omc", task=task, atc_version="6.1.1.0", soc_version=soc)
    decision = decide(path, DEVICE)
    assert outcome(decision, "chip") == result
    assert decision.answer == {"ok": "load", "mismatch": "refuse", "unknown": "unknown"}[result]
    if result == "unknown":
        assert decision.code == "CHIP_UNKNOWN"
        assert "platform code 14" in decision.explain() or "no chip" in decision.explain()
        assert "does not say for which chip" in decision.explain()
        assert "CheckFromFile" in decision.explain()


@pytest.mark.parametrize(
    ("code", "soc", "told"),
    [(10, "Kirin9030", True), (10, "Kirin9020", False), (16, "Kirin9030", False), (14, "KirinX90", False)],
)
def test_platform_code_that_the_writer_does_not_put_for_the_chip_is_told(
    tmp_path: Path, code: int, soc: str, told: bool
) -> None:
    path = write_real(tmp_path / "m.omc", task=encode_task_info(code), atc_version="6.1.1.0", soc_version=soc)
    decision = decide(path, replace(DEVICE, chip=soc, chips=(soc,)))
    assert decision.answer == "load"
    reasons = [reason for reason in decision.reasons() if "ORIGIN_CONTRADICTS" in reason]
    assert bool(reasons) == told
    if told:
        assert "found platform code 10 (TASK_INFO" in reasons[0]
        assert "16, the platform code for Kirin9030" in reasons[0]


@pytest.mark.parametrize(("chip", "result"), [("KirinX90", "ok"), ("Kirin9020", "mismatch")])
def test_chip_of_the_manifest_where_the_file_names_none(tmp_path: Path, chip: str, result: str) -> None:
    path = write_real(tmp_path / "m.omc", task=encode_task_info(14), atc_version="6.1.1.0")
    manifest = write_manifest(tmp_path / "manifest.json", build={"chip": chip, "cann": "6.1.1.0"}, simulated=False)
    assert outcome(decide(path, DEVICE, manifest=manifest), "chip") == result


@pytest.mark.parametrize("modeltype", [3, 0, 9, 200])
def test_portable_model_is_for_the_device_to_judge(tmp_path: Path, modeltype: int) -> None:
    header = HeaderFields(layout="K", modeltype=modeltype)
    path = write_real(tmp_path / "m.om", header=header, atc_version="6.1.1.0", soc_version="KirinX90")
    decision = decide(path, DEVICE)
    assert (decision.answer, decision.code) == ("unknown", "CHIP_UNKNOWN")


def test_model_of_the_other_dialect(tmp_path: Path) -> None:
    ascend = HeaderFields(layout="A2", table_bits=64)
    path = write_real(tmp_path / "m.om", header=ascend, atc_version="6.1.1.0", soc_version="KirinX90")
    assert_refused(decide(path, DEVICE), "CHIP_MISMATCH", "Ascend model", "KirinX90")
    kirin = write_real(tmp_path / "k.omc", atc_version="6.1.1.0", soc_version="KirinX90")
    decision = decide(kirin, Target(chip="Ascend310B4", cann="8.0.0", chips=("Ascend310B4",)))
    assert_refused(decision, "CHIP_MISMATCH", "Kirin model", "atc --soc_version=Ascend310B4")
    assert "equal" not in decision.explain()


@pytest.mark.parametrize(
    ("soc", "result"), [("Ascend310B4", "ok"), ("Ascend910B4", "mismatch"), ("Ascend310B", "mismatch"), ("", "unknown")]
)
def test_ascend_target(tmp_path: Path, soc: str, result: str) -> None:
    header = HeaderFields(layout="A2", table_bits=64)
    path = write_real(tmp_path / "m.om", header=header, atc_version="7.6.0.1.220", soc_version=soc)
    target = Target(chip="Ascend310B4", cann="8.0.0", chips=("Ascend310B4",))
    assert outcome(decide(path, target), "chip") == result
    assert outcome(decide(path, target), "cann") == "ok"


def test_dynamic_model_of_before_the_floor(tmp_path: Path) -> None:
    header = HeaderFields(layout="A2", table_bits=64, model_num=2)
    model = encode_model_def(
        name="m", inputs=[], outputs=[], attrs={"atc_version": "1.80.T15.0.B156", "soc_version": "Ascend310B4"},
        weight_size=0,
    )  # fmt: skip
    path = tmp_path / "m.om"
    write_container(path, header=header, partitions=[Partition(0, model, 0), Partition(0, model, 1)])
    target = Target(chip="Ascend310B4", cann="8.0.0", chips=("Ascend310B4",), policy="window")
    assert_refused(decide(path, target), "CANN_VERSION_MISMATCH", "dynamic shapes")


# Simulated and real


def test_simulated_package_on_a_device(tmp_path: Path) -> None:
    decision = decide(write_package(tmp_path / "p"), DEVICE)
    assert_refused(decision, "SIMULATED_PACKAGE_ON_DEVICE", "a simulated package", "--converter omg")


def test_real_package_on_the_simulator(tmp_path: Path) -> None:
    path = write_real(tmp_path / "m.omc", atc_version="6.1.1.0", soc_version="KirinX90")
    assert_refused(decide(path, SIM), "REAL_PACKAGE_ON_SIMULATOR", "a package for a real NPU", "from the checkpoint")
    assert decide(path, DEVICE).answer == "load"


# Completeness and sizes

FILES = [
    "executor.json",
    "context.json",
    "tokenizer.json",
    "tiny.omc",
    "SubGraph_0.weight",
    "tiny_64_2048.embedding_weights",
    "tiny_64_2048.embedding_dequant_scale",
]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("instead", ["nothing", "folder"])
def test_missing_file_is_named(tmp_path: Path, name: str, instead: str) -> None:
    package = write_package(tmp_path / "p")
    (package / name).unlink()
    if instead == "folder":
        (package / name).mkdir()
    assert_refused(decide(package, SIM), "PACKAGE_INCOMPLETE", f"missing: {name}")


def test_all_missing_files_are_named_at_once(tmp_path: Path) -> None:
    package = write_package(tmp_path / "p")
    (package / "context.json").unlink()
    (package / "tokenizer.json").unlink()
    assert_refused(decide(package, SIM), "PACKAGE_INCOMPLETE", "missing: context.json, tokenizer.json")


def test_package_that_is_not_there(tmp_path: Path) -> None:
    assert_refused(decide(tmp_path / "none", SIM), "PACKAGE_INCOMPLETE", "executor.json")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SubGraph_0.weight", WEIGHT_BYTES),
        ("tiny_64_2048.embedding_weights", VOCAB * HIDDEN),
        ("tiny_64_2048.embedding_dequant_scale", VOCAB * 4),
    ],
)
@pytest.mark.parametrize("change", [-1, 1])
def test_file_of_the_wrong_size(tmp_path: Path, name: str, expected: int, change: int) -> None:
    package = write_package(tmp_path / "p")
    (package / name).write_bytes(bytes(expected + change))
    assert_refused(
        decide(package, SIM), "PACKAGE_DAMAGED", name, f"{expected + change} bytes", f"{expected} bytes", "tiny"
    )


def test_size_of_the_manifest(tmp_path: Path) -> None:
    package = write_package(tmp_path / "p")
    files = {"tokenizer.json": {"bytes": 77}, "../outside": {"bytes": 1}}
    manifest = write_manifest(tmp_path / "manifest.json", files=files)
    assert_refused(decide(package, SIM, manifest=manifest), "PACKAGE_DAMAGED", "tokenizer.json of 77 bytes", "manifest")


@pytest.mark.parametrize(("cut", "code"), [(-1, "OM_TRUNCATED"), (100, "OM_TRUNCATED_HEADER"), (0, "OM_EMPTY")])
def test_broken_container_keeps_its_own_code(tmp_path: Path, cut: int, code: str) -> None:
    package = write_package(tmp_path / "p")
    data = (package / "tiny.omc").read_bytes()
    (package / "tiny.omc").write_bytes(data[:cut])
    decision = decide(package, SIM)
    assert_refused(decision, code, "tiny.omc")
    assert decision.bytes_read > 0


@pytest.mark.parametrize(("part", "code"), [("model", "OM_MODEL_DEF_UNREADABLE"), ("task", "OM_BAD_TLV")])
def test_unreadable_parts_of_the_model(tmp_path: Path, part: str, code: str) -> None:
    path = tmp_path / "m.omc"
    model = encode_model_def(name="m", inputs=[], outputs=[], attrs={}, weight_size=0)
    task = task_info_v2(10)
    parts = [
        Partition(0, b"\xff" * 9 if part == "model" else model),
        Partition(2, task[:-1] if part == "task" else task),
    ]
    write_container(path, header=HeaderFields(layout="K", modeltype=4), partitions=parts)
    assert_refused(decide(path, DEVICE), code, "m.omc")


def test_a_found_value_of_zero_is_shown(tmp_path: Path) -> None:
    path = write_omc(tmp_path / "m.omc")
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, 4, 0)
    path.write_bytes(data)
    decision = decide(path, SIM)
    assert decision.code == "OM_BAD_HEADER"
    assert "found 0 (" in decision.explain()


# executor.json and the manifest


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"", "executor.json cannot be used"),
        (b"{", "executor.json cannot be used"),
        (b"[]", "no JSON object"),
        (b"\xff\xfe", "executor.json cannot be used"),
        (b"[" * 16_000, "executor.json cannot be used"),
        (b" " * 20_000 + b"{}", "larger than 16384 bytes"),
        (b"{}", "llm_config"),
        (b'{"llm_config": 3}', "llm_config"),
    ],
)
def test_executor_that_cannot_be_used(tmp_path: Path, content: bytes, shown: str) -> None:
    package = write_package(tmp_path / "p")
    (package / "executor.json").write_bytes(content)
    assert_refused(decide(package, SIM), "PACKAGE_DAMAGED", shown)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("autoregressive", "model_path", None),
        ("autoregressive", "model_path", 7),
        ("autoregressive", "weight_path", ""),
        ("tokenizer", "path", None),
        ("llm_config", "embedding_weights", ["x"]),
        ("llm_config", "vocab_size", None),
        ("llm_config", "vocab_size", True),
        ("llm_config", "hidden_size", -1),
        ("llm_config", "hidden_size", "16"),
        ("llm_config", "kv_cache_max_len", None),
        ("llm_config", "kv_cache_max_len", 128.0),
        ("llm_config", "vocab_size", 2**31),
        ("llm_config", "hidden_size", int("9" * 4299)),
        ("llm_config", "num_attention_heads", None),
        ("llm_config", "num_attention_kv_heads", 0),
        ("llm_config", "num_attention_head_dims", "8"),
        ("llm_config", "num_hidden_layers", []),
        ("llm_config", "prefill_len", 0),
        ("llm_config", "decode_len", None),
        ("llm_config", "max_io_tokens", None),
        ("llm_config", "bos_token_id", None),
        ("llm_config", "eos_token_id", [2]),
        ("llm_config", "embedding_input_type", None),
        ("tokenizer", "type", None),
    ],
)
def test_executor_with_a_wrong_key(tmp_path: Path, section: str, key: str, value: object) -> None:
    package = write_package(tmp_path / "p")
    data = executor()
    data[section][key] = value
    write_json(package / "executor.json", data)
    assert_refused(decide(package, SIM), "PACKAGE_DAMAGED", f"{section}.{key}")


def test_embedding_type_without_a_size_rule(tmp_path: Path) -> None:
    package = write_package(tmp_path / "p")
    data = executor()
    data["llm_config"]["embedding_input_type"] = "float16"
    write_json(package / "executor.json", data)
    (package / "tiny_64_2048.embedding_weights").write_bytes(b"any")
    assert decide(package, SIM).answer == "load"


@pytest.mark.parametrize("name", ["../m.omc", "/etc/hostname", "sub/../../m.omc", "link.omc", "a\0b"])
def test_nothing_outside_the_package_is_read(tmp_path: Path, name: str) -> None:
    package = write_package(tmp_path / "p")
    write_omc(tmp_path / "m.omc")
    (package / "link.omc").symlink_to(tmp_path / "m.omc")
    data = executor()
    data["autoregressive"]["model_path"] = name
    write_json(package / "executor.json", data)
    decision = decide(package, SIM)
    if name.startswith("/"):
        assert_refused(decision, "PACKAGE_PATH_ABSOLUTE", name, "autoregressive.model_path", "all without a path")
    else:
        assert_refused(decision, "PACKAGE_DAMAGED", "outside its folder", "autoregressive.model_path")
    assert decision.bytes_read == (package / "executor.json").stat().st_size


def test_links_within_the_package_and_hard_links_are_fine(tmp_path: Path) -> None:
    package = write_package(tmp_path / "p")
    (package / "tiny.omc").rename(package / "real.omc")
    (package / "tiny.omc").symlink_to("real.omc")
    os.link(package / "SubGraph_0.weight", tmp_path / "copy")
    (package / "SubGraph_0.weight").unlink()
    os.link(tmp_path / "copy", package / "SubGraph_0.weight")
    assert decide(package, SIM).answer == "load"


def test_executor_that_is_a_link_out_of_the_package(tmp_path: Path) -> None:
    package = write_package(tmp_path / "p")
    (package / "executor.json").rename(tmp_path / "executor.json")
    (package / "executor.json").symlink_to(tmp_path / "executor.json")
    assert_refused(decide(package, SIM), "PACKAGE_DAMAGED", "outside its folder")


@pytest.mark.parametrize(
    ("content", "code"), [(None, "PACKAGE_INCOMPLETE"), ("{", "PACKAGE_DAMAGED"), ("[]", "PACKAGE_DAMAGED")]
)
def test_manifest_that_cannot_be_used(tmp_path: Path, content: str | None, code: str) -> None:
    package = write_package(tmp_path / "p")
    manifest = tmp_path / "manifest.json"
    if content is not None:
        manifest.write_text(content, encoding="utf-8")
    assert_refused(decide(package, SIM, manifest=manifest), code, "manifest.json")


@pytest.mark.parametrize(
    ("odd", "member"),
    [
        ({"build": 3}, "build"),
        ({"build": {"cann": 7}}, "build.cann"),
        ({"build": {"chip": ""}}, "build.chip"),
        ({"files": []}, "files"),
        ({"files": {"odd": "entry"}}, "files.odd.bytes"),
        ({"files": {"tokenizer.json": {"bytes": "2"}}}, "files.tokenizer.json.bytes"),
        ({"files": {"tokenizer.json": {"bytes": 2.0}}}, "files.tokenizer.json.bytes"),
        ({"files": {"tokenizer.json": {"bytes": True}}}, "files.tokenizer.json.bytes"),
        ({"files": {"tokenizer.json": {"bytes": -1}}}, "files.tokenizer.json.bytes"),
        ({"simulated": "yes"}, "simulated"),
    ],
)
def test_manifest_with_a_member_of_the_wrong_type_is_damaged(tmp_path: Path, odd: dict[str, Any], member: str) -> None:
    manifest = write_manifest(tmp_path / "manifest.json", **odd)
    decision = decide(write_package(tmp_path / "p"), SIM, manifest=manifest)
    assert_refused(decision, "PACKAGE_DAMAGED", member)
    assert decision.bytes_read >= manifest.stat().st_size


def test_manifest_that_says_little_is_fine(tmp_path: Path) -> None:
    manifest = write_json(tmp_path / "manifest.json", {"schema": 1})
    assert decide(write_package(tmp_path / "p"), SIM, manifest=manifest).answer == "load"


@pytest.mark.parametrize(
    "text",
    [
        "x" * 100_000,
        "[" * 100_000,
        '{"schema": 1, garbage' + " " * 100_000,
        '{"schema": 1 "build": {}' + " " * 100_000,
        '{"schema": 1}' + "x" * 100_000,
        "{1: 2," + " " * 100_000,
        '{"schema": ' + "[" * 100_000,
        '{"a": "\x01' + "x" * 100_000,
    ],
)
def test_large_garbage_is_no_manifest(tmp_path: Path, text: str) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_text(text, encoding="utf-8")
    assert_refused(decide(write_package(tmp_path / "p"), SIM, manifest=manifest), "PACKAGE_DAMAGED", "manifest.json")


def test_large_manifest_in_another_encoding_is_damaged(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_bytes(b'{"schema": 1, "name": "\xff' + b"x" * 100_000)
    assert_refused(decide(write_package(tmp_path / "p"), SIM, manifest=manifest), "PACKAGE_DAMAGED", "manifest.json")


@pytest.mark.parametrize("shift", range(60))
def test_large_manifest_may_be_cut_anywhere(tmp_path: Path, shift: int) -> None:
    tail = {"pad": "x" * (24 * 1024 - 60 + shift), "n": [-12.5e10, None, True, 'a"\\\u00e9', "é"], "more": "y" * 40_000}
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({"build": {"cann": "6.0.1.0"}, **tail}, ensure_ascii=shift % 2 == 0), encoding="utf-8")
    manifest = read_manifest(path, ReadCount())
    assert manifest.cann == "6.0.1.0"


@pytest.mark.parametrize("where", ["model_path", "package", "manifest"])
def test_name_that_the_system_refuses_is_an_answer(tmp_path: Path, where: str) -> None:
    package, long = write_package(tmp_path / "p"), "a" * 5000
    if where == "model_path":
        data = executor()
        data["autoregressive"]["model_path"] = long
        write_json(package / "executor.json", data)
    manifest = tmp_path / long if where == "manifest" else None
    decision = decide(tmp_path / long if where == "package" else package, SIM, manifest=manifest)
    assert_refused(decision, "PACKAGE_DAMAGED", "cannot be read", "aaa")


@pytest.mark.parametrize("name", ["executor.json", "manifest.json"])
def test_text_that_may_not_be_read_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    package, manifest = write_package(tmp_path / "p"), write_manifest(tmp_path / "manifest.json")
    real = Path.open

    def refuse(path: Path, *how: Any, **more: Any) -> Any:
        if path.name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *how, **more)

    monkeypatch.setattr(Path, "open", refuse)
    assert_refused(decide(package, SIM, manifest=manifest), "PACKAGE_DAMAGED", "Permission denied", name)


# Agreement

CONTRADICTIONS = [
    ({"build": {"cann": "6.0.1.0"}}, "CANN 6.0.1.0", "CANN 6.1.1.0", "atc_version of tiny.omc"),
    ({"build": {"chip": "Kirin9020"}}, "chip Kirin9020", "chip KirinX90", "soc_version of tiny.omc"),
    ({"simulated": False}, "for a real NPU", "simulated", "userdefineinfo of tiny.omc"),
]


@pytest.mark.parametrize(("wrong", "said", "counts", "place"), CONTRADICTIONS)
def test_manifest_that_contradicts_the_file_is_refused(
    tmp_path: Path, wrong: dict[str, Any], said: str, counts: str, place: str
) -> None:
    package, manifest = write_package(tmp_path / "p"), write_manifest(tmp_path / "manifest.json", **wrong)
    decision = decide(package, SIM, manifest=manifest)
    assert_refused(decision, "MANIFEST_CONTRADICTS", said, counts, place, "the file is what counts")


@pytest.mark.parametrize("policy", ["window", "off"])
@pytest.mark.parametrize(("wrong", "said", "counts", "place"), CONTRADICTIONS)
def test_other_policies_tell_of_a_contradiction_and_load(
    tmp_path: Path, policy: str, wrong: dict[str, Any], said: str, counts: str, place: str
) -> None:
    package, manifest = write_package(tmp_path / "p"), write_manifest(tmp_path / "manifest.json", **wrong)
    decision = decide(package, replace(SIM, policy=policy), manifest=manifest)
    assert decision.answer == "load"
    reason = next(reason for reason in decision.reasons() if "MANIFEST_CONTRADICTS" in reason)
    for text in (said, counts, place, f"policy {policy} does not refuse"):
        assert text in reason


def test_another_spelling_of_the_chip_contradicts_nothing(tmp_path: Path) -> None:
    manifest = write_manifest(tmp_path / "manifest.json", build={"chip": "kirin x90", "cann": "6.1.1.0"})
    assert decide(write_package(tmp_path / "p"), SIM, manifest=manifest).answer == "load"


@pytest.mark.parametrize("length", [64, 129, 10**9])
def test_cache_length_is_the_compiled_one(tmp_path: Path, length: int) -> None:
    package, data = write_package(tmp_path / "p"), executor()
    data["llm_config"]["kv_cache_max_len"] = length
    write_json(package / "executor.json", data)
    assert_refused(
        decide(package, SIM),
        "PACKAGE_DAMAGED",
        f"kv_cache_max_len {length}",
        "128 positions",
        "past_key_in0 of tiny.omc",
    )


def test_cache_length_that_the_graph_does_not_say_is_left_out(tmp_path: Path) -> None:
    package = write_package(tmp_path / "p")
    write_omc(package / "tiny.omc", inputs=())
    decision = decide(package, SIM)
    assert decision.answer == "load"
    assert "cache" not in {check.name for check in decision.checks}
    write_omc(package / "tiny.omc", inputs=(TensorIO("past_key_in0", "float16", (-1, 1, 1, 8)),))
    assert outcome(decide(package, SIM), "cache") == "ok"
    write_omc(package / "tiny.omc", inputs=(TensorIO("past_key_in0", "float16", (-1, 1, 1, 9)),))
    assert_refused(decide(package, SIM), "PACKAGE_DAMAGED", "any number of positions, 1 KV heads of 9")


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"num_attention_kv_heads": 7}, ("num_attention_kv_heads 7", "1 KV heads of 8", "past_key_in0")),
        ({"num_attention_head_dims": 16}, ("num_attention_head_dims 16", "1 KV heads of 8", "past_key_in0")),
        ({"num_hidden_layers": 28}, ("num_hidden_layers 28", "past_key_in27 of tiny.omc")),
        ({"num_hidden_layers": 2}, ("64 positions", "past_key_in1 of tiny.omc")),
    ],
)
def test_caches_are_the_compiled_ones(tmp_path: Path, changes: dict[str, int], shown: tuple[str, ...]) -> None:
    package, data = write_package(tmp_path / "p"), executor()
    data["llm_config"] |= changes
    write_json(package / "executor.json", data)
    write_omc(package / "tiny.omc", inputs=(*INPUTS, TensorIO("past_key_in1", "float16", (64, 1, 1, 8))))
    assert_refused(decide(package, SIM), "PACKAGE_DAMAGED", *shown)


@pytest.mark.parametrize("flag", ["is_kv_cache_merge", "enable_dynamic_kv_cache"])
@pytest.mark.parametrize("heads", [1, 2])
def test_with_merged_or_dynamic_caches_lengths_are_left_out(tmp_path: Path, flag: str, heads: int) -> None:
    package, data = write_package(tmp_path / "p"), executor()
    data["llm_config"] |= {flag: True, "kv_cache_max_len": 999, "num_attention_kv_heads": heads}
    write_json(package / "executor.json", data)
    assert decide(package, SIM).answer == ("load" if heads == 1 else "refuse")


def test_deep_model_is_held_against_its_cache_within_the_read_limit(tmp_path: Path) -> None:
    package = write_package(tmp_path / "p")
    caches = [
        TensorIO(f"past_{kind}_in{i}", "float16", (CONTEXT, 8, 1, 128)) for i in range(64) for kind in ("key", "value")
    ]
    write_omc(package / "tiny.omc", inputs=[*INPUTS[:2], *caches], outputs=[*OUTPUTS, *caches])
    data = executor()
    data["llm_config"] |= {"num_attention_kv_heads": 8, "num_attention_head_dims": 128, "num_hidden_layers": 64}
    write_json(package / "executor.json", data)
    decision = decide(package, SIM)
    assert (decision.answer, outcome(decision, "cache")) == ("load", "ok")
    assert decision.bytes_read <= READ_LIMIT


def test_start_of_a_large_manifest_is_enough(tmp_path: Path) -> None:
    path = write_real(tmp_path / "m.omc", soc_version="KirinX90")
    quality = {f"tensor{i}": [0.5] * 20 for i in range(9000)}
    manifest = write_manifest(tmp_path / "manifest.json", simulated=False, quality=quality)
    decision = decide(path, DEVICE, manifest=manifest)
    assert decision.answer == "load"
    assert "build.cann in manifest.json" in decision.explain()
    assert decision.bytes_read < READ_LIMIT < manifest.stat().st_size


# What it costs


def test_size_and_model_def_do_not_matter(tmp_path: Path) -> None:
    package = write_package(tmp_path / "p")
    path = package / "tiny.omc"
    huge = 3 << 30
    hole = tmp_path / "hole"
    with hole.open("wb") as file:
        file.truncate(huge)
    op = wire.bytes_field(2, "GraphOp") + wire.bytes_field(
        10, wire.bytes_field(1, "graphop_weight_size") + wire.bytes_field(2, wire.number_field(3, WEIGHT_BYTES))
    )
    big_field = wire.encode_varint(12 << 3 | 2) + wire.encode_varint(huge)
    graph = wire.bytes_field(6, op) + big_field
    head = wire.bytes_field(1, "m") + wire.encode_varint(7 << 3 | 2) + wire.encode_varint(len(graph) + huge) + graph
    tail = b"".join(
        wire.bytes_field(11, wire.bytes_field(1, key) + wire.bytes_field(2, wire.bytes_field(2, value)))
        for key, value in (("atc_version", "6.1.1.0"), ("soc_version", "KirinX90"))
    )
    task = task_info_v2(10)
    header = HeaderFields(layout="K", modeltype=4, userdefineinfo=SIMULATED_MARK)
    size = len(head) + huge + len(tail)
    payload = 4 + 2 * 12 + size + len(task)
    with path.open("wb") as file:
        file.write(header.pack(payload) + struct.pack("<IIIIIII", 2, 0, 0, size, 2, size, len(task)) + head)
        file.seek(huge, os.SEEK_CUR)
        file.write(tail + task)
    assert path.stat().st_size == HEADER_BYTES + payload > 3e9
    decision = decide(package, SIM, manifest=write_manifest(tmp_path / "manifest.json"))
    assert decision.answer == "load"
    assert decision.bytes_read <= 8 * 1024
    assert min(decide(package, SIM).ms for _ in range(5)) < 5


def test_weight_size_beyond_the_read_limit_is_unknown(tmp_path: Path) -> None:
    package = write_package(tmp_path / "p")
    data_op = wire.bytes_field(6, wire.bytes_field(1, "input" * 10) + wire.bytes_field(2, "Data"))
    attrs = {"atc_version": "6.1.1.0", "soc_version": "KirinX90"}
    write_container(
        package / "tiny.omc",
        header=HeaderFields(layout="K", modeltype=4, userdefineinfo=SIMULATED_MARK),
        partitions=[Partition(0, replace_attributes(wire.bytes_field(7, data_op * 2000), attrs))],
    )
    decision = decide(package, SIM)
    assert_refused(decision, "WEIGHT_SIZE_UNKNOWN", f"{WEIGHT_BYTES} bytes", "SubGraph_0.weight")
    assert decision.bytes_read <= READ_LIMIT
    with_manifest = decide(package, SIM, manifest=write_manifest(tmp_path / "manifest.json"))
    assert with_manifest.answer == "load"
    (package / "SubGraph_0.weight").unlink()
    assert_refused(decide(package, SIM), "PACKAGE_INCOMPLETE", "missing: SubGraph_0.weight")


def test_attributes_beyond_the_read_limit_are_unknown(tmp_path: Path) -> None:
    many = {f"a{i}": "x" * 40 for i in range(4000)}
    path = write_omc(tmp_path / "m.omc", extra_attrs=many)
    decision = decide(path, SIM)
    assert_refused(decision, "OM_READ_LIMIT", "65536")
    assert decision.bytes_read <= READ_LIMIT


def test_texts_from_files_cannot_break_the_line(tmp_path: Path) -> None:
    path = write_real(tmp_path / "m.omc", atc_version="6.1\n1.0\x1b[31m\u2028" + "9" * 900, soc_version="KirinX90")
    line = decide(path, DEVICE).explain()
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line
    assert len(line) < 2000


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy": "strict"},
        {"on_unknown": "maybe"},
        {"chip": 5},
        {"cann": 6.1},
        {"device_version": 1},
        {"simulated": 1},
        {"chips": ["KirinX90"]},
        {"chips": (1,)},
        {"version_pairs": (("6.1.1.0",),)},
    ],
)
def test_target_with_an_unknown_rule(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="of the gate"):
        Target(**{"chip": "KirinX90", "cann": None, **wrong})
