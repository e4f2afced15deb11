"""A package made elsewhere, taken in: what is refused, what is made and from what, and what is left of a failure."""

import hashlib
import io
import json
import shutil
import stat
import zipfile
from pathlib import Path

import pytest
from drafts import CONTEXT, HEAD_DIM, HIDDEN, KV_HEADS, LAYERS, MODEL, ROWS, SCALES, STEM, VOCAB, WEIGHTS, Draft

from pytest_cannlm.build.importing import ImportOrder, archive, entries, import_package, name_of, parse_settings, run
from pytest_cannlm.compat.gate import Target, decide
from pytest_cannlm.errors import BadInputError, CannlmError, EnvironmentFailure, PackageError, UsageError
from pytest_cannlm.lint import lint
from pytest_cannlm.progress import SilentProgress

SETTINGS = {"llm_config.decode_len": 1, "llm_config.max_io_tokens": 512}
API = {
    "tokenizerType": 3,
    "modelPath": f"/data/app/{MODEL}",
    "tokenizerPath": "/data/app/tokenizer.json",
    "inferType": 0,
    "callbackFreq": 1,
    "maxGenTokens": 16,
    "initTokenLen": 0,
    "sampleFlag": 0,
    "seed": 7,
    "stopSeq": "<|im_end|>",
}
DESCRIPTION = {"num_attention_heads": 4, "bos_token_id": 1, "eos_token_id": 2, "num_key_value_heads": KV_HEADS}


@pytest.fixture
def elsewhere(tiny_packages, tmp_path) -> Draft:
    """A package without a manifest, in ``source/package``."""
    draft = Draft(tiny_packages.built().manifest.parent, tmp_path / "source")
    draft.without_manifest()
    return draft


@pytest.fixture
def published(elsewhere) -> Draft:
    """The same as a vendor publishes it: without the engine's own settings."""
    for name in ("executor.json", "context.json"):
        elsewhere.path(name).unlink()
    elsewhere.write_json("api_config.json", API)
    elsewhere.write_json(f"{STEM}.json", DESCRIPTION)
    return elsewhere


def take_in(source: Path, out: Path, **order):
    return import_package(ImportOrder(source, out, name_of(source), **order), progress=SilentProgress())


def zipped(folder: Path, file: Path, *, prefix: str = "", compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(file, "w", compression) as archived:
        for path in sorted(folder.rglob("*")):
            archived.write(path, prefix + path.relative_to(folder).as_posix())
    return file


def zip_of(file: Path, *members: tuple[object, bytes]) -> Path:
    with zipfile.ZipFile(file, "w") as archived:
        for name, data in (("executor.json", b"{}"), *members):
            archived.writestr(name, data)
    return file


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def refused(source: Path, out: Path, code: str, **order) -> CannlmError:
    with pytest.raises(CannlmError) as caught:
        take_in(source, out, **order)
    assert caught.value.code == code
    assert not out.exists()
    assert [path for path in out.parent.iterdir() if "importing" in path.name] == []
    return caught.value


def test_a_folder_is_taken_in_as_it_is(elsewhere, tmp_path):
    before = contents(elsewhere.root)
    imported = take_in(elsewhere.package, tmp_path / "out")
    assert contents(elsewhere.root) == before
    assert imported.folder == tmp_path / "out"
    assert {name: data for name, (data, _) in contents(imported.folder / "package").items()} == {
        name.removeprefix("package/"): data for name, (data, _) in before.items() if name.startswith("package/")
    }
    manifest = json.loads((imported.folder / "manifest.json").read_text("utf-8"))
    assert (manifest["imported"], manifest["simulated"], manifest["build"]) == (True, True, {})
    assert (manifest["source"]["kind"], manifest["changes"], manifest["settings_from"]) == ("folder", {}, {})
    for name, facts in manifest["files"].items():
        data = (imported.folder / "package" / name).read_bytes()
        assert facts == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    report = lint(imported.folder, hashes=True)
    assert report.good()
    assert not [finding for finding in report.findings if finding.code in ("PKG111", "PKG112", "PKG113")]
    assert imported.report.package == str(tmp_path / "out" / "package")


def test_the_sha256_of_a_folder_is_that_of_its_files_in_order(elsewhere, tmp_path):
    imported = take_in(elsewhere.package, tmp_path / "out")
    lines = "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(elsewhere.package.iterdir())
    )
    assert imported.manifest["source"]["sha256"] == hashlib.sha256(lines.encode()).hexdigest()


@pytest.mark.parametrize("prefix", ["", "Model-OMC/", "Model-OMC/package/"])
def test_a_zip_under_any_name_with_the_package_in_any_folder_of_it(elsewhere, tmp_path, prefix):
    file = zipped(elsewhere.package, tmp_path / "download", prefix=prefix)
    with zipfile.ZipFile(file, "a") as archived:
        archived.writestr("__MACOSX/Model-OMC/._tiny.omc", b"litter")
        if prefix:
            archived.writestr("README.md", b"read me")
    imported = take_in(file, tmp_path / "out")
    source = imported.manifest["source"]
    assert (source["kind"], source["folder"], source["name"]) == ("zip", prefix, "download")
    assert source["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    left_out = ["README.md"] if prefix else []
    assert source["left_out"] == [*left_out, "__MACOSX/Model-OMC/._tiny.omc"]
    assert {path.name for path in (imported.folder / "package").iterdir()} == {
        path.name for path in elsewhere.package.iterdir()
    }


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_every_way_of_packing(elsewhere, tmp_path, compression):
    file = zipped(elsewhere.package, tmp_path / "it.zip", compression=compression)
    assert take_in(file, tmp_path / "out").report.good()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("../evil", "leads out"),
        ("a/../../evil", "leads out"),
        ("/etc/evil", "absolute"),
        ("C:/evil", "drive letter"),
        ("C:evil", "drive letter"),
        ("a\\..\\evil", "backslash"),
        ("a//b", "empty part"),
        ("./a", "empty part"),
        ("model.omc.", "dot or a blank"),
        ("a\nb", "control"),
        ("EXECUTOR.json", "many systems take for the same"),
        ("executor.json/a", "a file and a folder"),
    ],
)
def test_names_that_lead_elsewhere_are_refused_by_name(tmp_path, name, found):
    error = refused(zip_of(tmp_path / "z.zip", (name, b"x")), tmp_path / "out", "SOURCE_UNSAFE")
    assert found in error.found
    assert error.field in (ascii(name)[1:-1], "executor.json")
    assert not (tmp_path.parent / "evil").exists()


def test_a_file_without_a_name_is_refused(tmp_path):
    nameless = zipfile.ZipInfo("x")
    file = tmp_path / "nameless.zip"
    with zipfile.ZipFile(file, "w") as archived:
        archived.writestr("executor.json", b"{}")
        archived.writestr(nameless, b"")
        nameless.filename = ""  # in the table at the end, which is written last
    assert "empty part" in refused(file, tmp_path / "out", "SOURCE_UNSAFE").found


def test_a_name_that_stands_twice_is_refused(tmp_path):
    with pytest.warns(UserWarning, match="Duplicate"):
        file = zip_of(tmp_path / "z.zip", ("a.omc", b"x"), ("a.omc", b"y"))
    assert refused(file, tmp_path / "out", "SOURCE_UNSAFE").found == "there twice"


def test_names_that_differ_only_in_how_letters_are_composed_are_refused(tmp_path):
    file = zip_of(tmp_path / "z.zip", ("\u00e4", b"x"), ("a\u0308", b"y"))
    assert "for the same" in refused(file, tmp_path / "out", "SOURCE_UNSAFE").found


@pytest.mark.parametrize(("kind", "found"), [(stat.S_IFLNK, "a link"), (stat.S_IFIFO, "no plain file")])
def test_what_is_no_plain_file_in_a_zip_is_refused(tmp_path, kind, found):
    info = zipfile.ZipInfo("way-out")
    info.create_system = 3
    info.external_attr = (kind | 0o777) << 16
    error = refused(zip_of(tmp_path / "z.zip", (info, b"/etc/passwd")), tmp_path / "out", "SOURCE_UNSAFE")
    assert (error.field, error.found) == ("way-out", found)


def test_an_encrypted_file_is_refused(tmp_path):
    file = zip_of(tmp_path / "z.zip", ("secret", b"x"))
    data = bytearray(file.read_bytes())
    entry = data.rindex(b"PK\x01\x02")
    data[entry + 8] |= 1
    file.write_bytes(data)
    error = refused(file, tmp_path / "out", "SOURCE_UNREADABLE")
    assert (error.field, error.found) == ("secret", "an encrypted file")


def test_a_wrong_checksum_is_refused_and_nothing_is_left(elsewhere, tmp_path):
    file = zipped(elsewhere.package, tmp_path / "z.zip", compression=zipfile.ZIP_STORED)
    data = file.read_bytes()
    weights = elsewhere.path(WEIGHTS).read_bytes()
    place = data.index(weights)
    file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    error = refused(file, tmp_path / "out", "SOURCE_UNREADABLE")
    assert error.field == WEIGHTS
    assert "CRC" in str(error.found)


def test_a_declared_size_that_is_not_the_real_one_is_refused(elsewhere, tmp_path):
    file = zipped(elsewhere.package, tmp_path / "z.zip")
    data = bytearray(file.read_bytes())
    with zipfile.ZipFile(io.BytesIO(bytes(data))) as archived:
        size = archived.getinfo(WEIGHTS).file_size
    old, new = size.to_bytes(4, "little"), (size + 9).to_bytes(4, "little")
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        place = data.index(signature)
        while bytes(data[place + offset : place + offset + 4]) != old:
            place = data.index(signature, place + 1)
        data[place + offset : place + offset + 4] = new
    file.write_bytes(data)
    assert refused(file, tmp_path / "out", "SOURCE_UNREADABLE").field == WEIGHTS


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_half_a_download_is_called_so(elsewhere, tmp_path, share):
    file = zipped(elsewhere.package, tmp_path / "z.zip")
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])
    assert "cut short" in refused(file, tmp_path / "out", "SOURCE_UNREADABLE").remedy


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    file = tmp_path / "bomb.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archived:
        archived.writestr("executor.json", "{}")
        archived.writestr("zeros", bytes(2 << 20))
    monkeypatch.setattr(archive, "RATIO_FREE_BYTES", 1 << 20)
    monkeypatch.setattr(run, "_take", lambda *_: pytest.fail("was unpacked"))
    assert "at most 100 times" in refused(file, tmp_path / "out", "SOURCE_UNSAFE").expected
    monkeypatch.setattr(archive, "MOST_RATIO", 10_000)
    monkeypatch.setattr(archive, "MOST_BYTES", 1 << 20)
    assert "1,048,576" in refused(file, tmp_path / "out", "SOURCE_UNSAFE").expected


def test_too_many_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(entries, "MOST_ENTRIES", 3)
    file = zip_of(tmp_path / "z.zip", *((f"{i}", b"") for i in range(3)))
    assert refused(file, tmp_path / "out", "SOURCE_UNSAFE").found == "4 files"
    folder = tmp_path / "folder"
    folder.mkdir()
    for i in range(4):
        (folder / f"{i}").touch()
    assert refused(folder, tmp_path / "out", "SOURCE_UNSAFE").found == "more than 3 files"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 987654321\n", "987,654,321"),
        (b"<!DOCTYPE html><html>", "HTML"),
        (b"", "0 bytes"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"IMOD\x00\x00\x00\x00", "offline model"),
        (b"{}", "JSON"),
        (b"Rar!\x1a\x07", "no known kind"),
    ],
)
def test_what_is_no_package_at_all_is_named_for_what_it_is(tmp_path, data, words):
    (tmp_path / "model.zip").write_bytes(data)
    error = refused(tmp_path / "model.zip", tmp_path / "out", "SOURCE_UNREADABLE")
    assert words in error.found
    assert error.remedy


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["notes.txt"], "1 files, such as notes.txt"),
        (["inner.zip"], "archives inside"),
        (["archive/data.pkl"], "PyTorch"),
        ([], "no files"),
        (["a/x.omc", "b/y.omc"], "a/, b/"),
    ],
)
def test_a_source_without_one_package_is_refused(tmp_path, names, found):
    file = tmp_path / "z.zip"
    with zipfile.ZipFile(file, "w") as archived:
        archived.writestr(".DS_Store", b"litter")
        for name in names:
            archived.writestr(name, b"")
    assert found in refused(file, tmp_path / "out", "SOURCE_NO_PACKAGE").found


def test_a_package_with_its_manifest_needs_no_import(tiny_packages, tmp_path):
    built = tiny_packages.built().manifest.parent
    for source in (built, built / "package", zipped(built, tmp_path / "z.zip")):
        refused(source, tmp_path / "out", "SOURCE_HAS_MANIFEST")


def test_links_inside_a_folder_are_followed_and_links_out_of_it_are_refused(elsewhere, tmp_path):
    target = elsewhere.path("tokenizer.json")
    inner = elsewhere.path("tokenizer-1.json")
    try:
        target.rename(inner)
        target.symlink_to(inner.name)
    except OSError:
        pytest.skip("no symbolic links here")
    imported = take_in(elsewhere.package, tmp_path / "out")
    copy = imported.folder / "package" / "tokenizer.json"
    assert copy.read_bytes() == inner.read_bytes()
    assert not copy.is_symlink()
    shutil.move(inner, tmp_path / "tokenizer-1.json")
    target.unlink()
    target.symlink_to(tmp_path / "tokenizer-1.json")
    assert refused(elsewhere.package, tmp_path / "again", "SOURCE_UNSAFE").field == "tokenizer.json"


def test_the_output_must_be_new_and_outside_the_source(elsewhere, tmp_path):
    before = contents(elsewhere.root)
    for out in (elsewhere.package / "out", elsewhere.package):
        with pytest.raises(UsageError):
            take_in(elsewhere.package, out)
    assert contents(elsewhere.root) == before
    (tmp_path / "empty").mkdir()
    assert take_in(elsewhere.package, tmp_path / "empty").folder == tmp_path / "empty"


def test_a_disk_that_is_too_small_is_told_before_anything_is_written(elsewhere, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(EnvironmentFailure, match="does not fit"):
        take_in(elsewhere.package, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_interrupted_import_leaves_nothing(elsewhere, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "lint", interrupted)
    with pytest.raises(KeyboardInterrupt):
        take_in(elsewhere.package, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_shared_files_are_the_large_ones_only(elsewhere, tmp_path):
    elsewhere.write("tokenizer.json", elsewhere.path("tokenizer.json").read_bytes())
    imported = take_in(elsewhere.package, tmp_path / "out", link=True)
    linked = imported.manifest["source"]["linked"]
    if not linked:
        pytest.skip("no links on this file system")
    assert sorted(linked) == sorted([WEIGHTS, MODEL, ROWS, SCALES])
    for path in elsewhere.package.iterdir():
        assert path.samefile(imported.folder / "package" / path.name) == (path.name in linked)
    assert lint(imported.folder, hashes=True).good()
    copied = take_in(elsewhere.package, tmp_path / "copied")
    assert copied.manifest["source"]["linked"] == []
    assert copied.manifest["source"]["sha256"] == imported.manifest["source"]["sha256"]


def test_without_links_the_files_are_copied(elsewhere, tmp_path, monkeypatch):
    def no_link(*_):
        raise OSError

    monkeypatch.setattr(run.os, "link", no_link)
    imported = take_in(elsewhere.package, tmp_path / "out", link=True)
    assert imported.manifest["source"]["linked"] == []
    assert imported.report.good()


def test_an_error_of_the_lint_leaves_nothing_unless_it_is_to_be_kept(elsewhere, tmp_path):
    elsewhere.llm(num_hidden_layers=LAYERS + 1)
    failed = take_in(elsewhere.package, tmp_path / "out")
    assert failed.folder is None
    assert "PKG030" in {finding.code for finding in failed.report.of("error")}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]
    kept = take_in(elsewhere.package, tmp_path / "out", keep=True)
    assert kept.folder == tmp_path / "out"
    assert not kept.report.good()


def test_merges_that_are_pairs_are_an_error_until_they_are_to_be_fixed(elsewhere, tmp_path):
    data = json.loads(elsewhere.path("tokenizer.json").read_text("utf-8"))
    merges = data["model"]["merges"]
    data["model"]["merges"] = [merge.split(" ") for merge in merges]
    elsewhere.write_json("tokenizer.json", data)
    before = elsewhere.path("tokenizer.json").read_bytes()
    assert {finding.code for finding in take_in(elsewhere.package, tmp_path / "out").report.of("error")} == {"PKG050"}
    fixed = take_in(elsewhere.package, tmp_path / "out", fix=True, link=True)
    tokenizer = fixed.folder / "package" / "tokenizer.json"
    assert json.loads(tokenizer.read_text("utf-8"))["model"]["merges"] == merges
    assert list(fixed.manifest["changes"]) == ["tokenizer.json"]
    assert elsewhere.path("tokenizer.json").read_bytes() == before
    assert lint(fixed.folder, hashes=True).good()


def test_a_sound_tokenizer_is_not_written_again(elsewhere, tmp_path):
    assert take_in(elsewhere.package, tmp_path / "out", fix=True).manifest["changes"] == {}


def test_settings_are_made_from_what_the_files_say(published, tmp_path):
    original = published.path(f"{STEM}.json").read_bytes()
    imported = take_in(published.package, tmp_path / "out", settings=SETTINGS)
    package = imported.folder / "package"
    executor = json.loads((package / "executor.json").read_text("utf-8"))
    assert executor["llm_config"] == {
        "num_hidden_layers": LAYERS,
        "kv_cache_max_len": CONTEXT,
        "num_attention_kv_heads": KV_HEADS,
        "num_attention_head_dims": HEAD_DIM,
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "embedding_input_type": "int8",
        "embedding_weights": ROWS,
        "embedding_dequant_scale": SCALES,
        "num_attention_heads": 4,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "prefill_len": 64,
        "decode_len": 1,
        "max_io_tokens": 512,
    }
    assert executor["tokenizer"] == {"type": "bpe", "path": "tokenizer.json"}
    assert executor["autoregressive"] == {"model_path": MODEL, "weight_path": "./"}
    context = json.loads((package / "context.json").read_text("utf-8"))
    assert context["generate_options"]["stop_sequence"] == ["<|im_end|>"]
    assert context["sampler"] == {"do_sample": False, "seed": 7}
    sources = imported.manifest["settings_from"]["executor.json"]
    assert sources["llm_config.kv_cache_max_len"] == f"past_key_in0 of {MODEL}"
    assert sources["llm_config.prefill_len"] == f"name of {ROWS}"
    assert sources["llm_config.decode_len"] == "given by the user"
    assert imported.manifest["changes"] == {"executor.json": "made", "context.json": "made"}
    assert (package / f"{STEM}.json").read_bytes() == original
    assert not (published.package / "executor.json").exists()


def test_what_no_file_says_is_not_guessed_but_listed(published, tmp_path):
    published.path(f"{STEM}.json").unlink()
    published.write_json("api_config.json", {"tokenizerType": 99, "seed": 7})
    error = refused(published.package, tmp_path / "out", "SOURCE_INCOMPLETE")
    missing = (
        *("llm_config.num_attention_heads", "llm_config.decode_len", "llm_config.max_io_tokens"),
        *("llm_config.bos_token_id", "llm_config.eos_token_id", "tokenizer.type", "generate_options.callback_freq"),
    )
    assert error.found == f"nothing that says {', '.join(missing)}"
    assert all(f"--set {field}=VALUE" in error.remedy for field in missing)
    given = parse_settings(
        [
            *("llm_config.num_attention_heads=4", "llm_config.decode_len=1", "llm_config.max_io_tokens=512"),
            *("llm_config.bos_token_id=1", "llm_config.eos_token_id=2", "tokenizer.type=bpe"),
            "generate_options.callback_freq=1",
        ]
    )
    assert take_in(published.package, tmp_path / "out", settings=given).report.good()


@pytest.mark.parametrize(
    ("description", "api", "field"),
    [
        ({"hidden_size": HIDDEN + 1}, {}, "llm_config.hidden_size"),
        ({"num_key_value_heads": 1}, {}, "llm_config.num_attention_kv_heads"),
        ({"llm_config": {"kv_cache_max_len": 4096}}, {}, "llm_config.kv_cache_max_len"),
    ],
)
def test_two_sources_that_disagree_are_named(published, tmp_path, description, api, field):
    published.write_json(f"{STEM}.json", DESCRIPTION | description)
    error = refused(published.package, tmp_path / "out", "SOURCE_CONTRADICTS", settings=SETTINGS)
    assert error.field == field
    assert MODEL in error.found
    assert f"{STEM}.json" in error.expected


def test_a_truncated_embedding_contradicts_the_graph(published, tmp_path):
    published.write(SCALES, published.path(SCALES).read_bytes()[:-4])
    error = refused(published.package, tmp_path / "out", "SOURCE_CONTRADICTS", settings=SETTINGS)
    assert error.field == "llm_config.vocab_size"


@pytest.mark.parametrize("kind", [1, "LLMLINGUA"])
def test_another_kind_of_inference_is_refused(published, tmp_path, kind):
    published.write_json("api_config.json", API | {"inferType": kind})
    refused(published.package, tmp_path / "out", "SOURCE_UNSUPPORTED", settings=SETTINGS)


def test_a_broken_settings_file_is_named(published, tmp_path):
    published.write("api_config.json", b'{"seed": 1,,}')
    error = refused(published.package, tmp_path / "out", "SOURCE_UNREADABLE")
    assert isinstance(error, PackageError)
    assert error.file == "api_config.json"


def test_a_setting_is_added_to_an_existing_file_and_never_replaces_one(elsewhere, tmp_path):
    elsewhere.drop("executor.json", "llm_config.num_attention_heads")
    given = parse_settings(["llm_config.num_attention_heads=4"])
    imported = take_in(elsewhere.package, tmp_path / "out", settings=given)
    assert imported.manifest["changes"] == {"executor.json": "settings added"}
    assert imported.report.good()
    assert lint(imported.folder, hashes=True).good()
    given = parse_settings(["llm_config.hidden_size=64"])
    error = refused(elsewhere.package, tmp_path / "other", "SOURCE_CONTRADICTS", settings=given)
    assert (error.found, error.expected) == (f"{HIDDEN} (executor.json)", "64 (given by the user)")


@pytest.mark.parametrize(
    "text",
    [
        "llm_config.hidden_size",
        "hidden_size=1",
        "llm_config.hiden_size=1",
        "llm_config.hidden_size=0",
        "sampler.seed=x",
    ],
)
def test_settings_that_are_none_are_refused(text):
    with pytest.raises(UsageError, match="--set"):
        parse_settings([text])


def test_a_setting_given_twice_is_refused():
    with pytest.raises(UsageError, match="twice"):
        parse_settings(["sampler.seed=1", "sampler.seed=1"])


def test_texts_may_look_like_json():
    given = parse_settings(
        ["autoregressive.weight_path=1", "tokenizer.type=qwen", 'generate_options.stop_sequence=["a"]']
    )
    assert given == {
        "autoregressive.weight_path": "1",
        "tokenizer.type": "qwen",
        "generate_options.stop_sequence": ["a"],
    }


def test_what_the_user_says_of_a_silent_model_lets_the_gate_judge(elsewhere, tmp_path):
    elsewhere.compile_for_real()
    silent = take_in(elsewhere.package, tmp_path / "silent")
    said = take_in(elsewhere.package, tmp_path / "said", cann="6.1.1.0", chip="kirin x90")
    assert said.manifest["build"] == {"cann": "6.1.1.0", "chip": "KirinX90", "said_by_the_user": ["cann", "chip"]}
    assert said.manifest["simulated"] is False
    for imported, cann, answer in (
        (silent, "6.1.1.0", "unknown"),
        (said, "6.1.1.0", "load"),
        (said, "6.0.1.0", "refuse"),
    ):
        target = Target(chip="KirinX90", cann=cann, simulated=False)
        decision = decide(imported.folder / "package", target, manifest=imported.folder / "manifest.json")
        assert decision.answer == answer


def test_what_the_user_says_must_not_contradict_the_model(elsewhere, tmp_path):
    agreed = take_in(elsewhere.package, tmp_path / "agreed", cann="6.1.1.0", chip="KirinX90")
    assert agreed.manifest["build"] == {}
    for order, found in (({"cann": "6.0.1.0"}, "6.0.1.0"), ({"chip": "Kirin9020"}, "Kirin9020")):
        error = refused(elsewhere.package, tmp_path / "out", "SOURCE_CONTRADICTS", **order)
        assert isinstance(error, BadInputError)
        assert error.found == found
    with pytest.raises(UsageError, match="--cann"):
        take_in(elsewhere.package, tmp_path / "out", cann="latest")


def test_compiled_flags_of_an_import_are_not_our_build_s(elsewhere, tmp_path):
    elsewhere.compile_for_real()
    elsewhere.llm(is_kv_cache_merge=True)
    report = take_in(elsewhere.package, tmp_path / "out").report
    assert report.good()
    assert "PKG024" in {entry.code for entry in report.not_checked}


@pytest.mark.parametrize(
    ("source", "name"),
    [("Qwen25-Coder-7B-OMC.zip", "Qwen25-Coder-7B-OMC"), ("my model (1).ZIP", "my-model-1"), ("千问", "imported")],
)
def test_the_name_of_a_source(source, name):
    assert name_of(Path(source)) == name
