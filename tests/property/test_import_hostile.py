"""Whatever a source holds: an import ends with a package or with an error of ours, and writes nowhere else."""

import json
import zipfile
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packages import write_package

from pytest_cannlm.build.importing import ImportOrder, import_package
from pytest_cannlm.build.importing.entries import check_names
from pytest_cannlm.errors import BadInputError, CannlmError
from pytest_cannlm.progress import SilentProgress

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    [
        *("tokenizerType", "tokenizerPath", "modelPath", "inferType", "stopSeq", "sampleFlag", "seed", "topK"),
        *("hidden_size", "num_attention_heads", "llm_config", "rope_theta", "bos_token_id", "architectures"),
    ]
)
slow = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def archived(root: Path) -> Path:
    file = root / "z"
    package = write_package(root / "made")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(package.iterdir()):
            archive.write(path, path.name)
    return file


def take_in(root: Path, source: Path) -> None:
    place = root / "place"
    place.mkdir()
    before = {path: path.stat().st_size for path in root.rglob("*")}
    with suppress(CannlmError):
        import_package(ImportOrder(source, place / "out", "x", keep=True), progress=SilentProgress())
    after = {path: path.stat().st_size for path in root.rglob("*") if place not in path.parents}
    assert after == {path: size for path, size in before.items() if place not in path.parents}
    assert {path.name for path in place.iterdir()} <= {"out"}
    assert not (place / "out").exists() or (place / "out" / "manifest.json").is_file()


@slow
@given(st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=6), st.integers(0, 99))
def test_a_damaged_zip(changes, cut):
    with TemporaryDirectory() as folder:
        file = archived(Path(folder))
        data = bytearray(file.read_bytes())
        for place, byte in changes:
            data[-1 - place % min(len(data), 900)] = byte  # the table of files is at the end
        file.write_bytes(data[: len(data) - cut] if cut < 20 else data)
        take_in(Path(folder), file)


@slow
@given(
    st.dictionaries(KEYS, JSON, max_size=6) | JSON,
    st.dictionaries(KEYS, JSON, max_size=6) | JSON,
    st.booleans(),
)
def test_settings_of_any_kind(api, description, there):
    with TemporaryDirectory() as folder:
        package = write_package(Path(folder) / "made")
        (package / "context.json").unlink()
        if not there:
            (package / "executor.json").unlink()
        (package / "api_config.json").write_text(json.dumps(api), encoding="utf-8")
        (package / "tiny.json").write_text(json.dumps(description), encoding="utf-8")
        take_in(Path(folder), package)


@given(st.lists(st.text(st.sampled_from("aA./\\: \u00e4\u0308\n-"), min_size=1, max_size=6), max_size=5))
def test_names_that_pass_stay_inside_and_are_told_apart(names):
    try:
        check_names(Path("source"), names)
    except BadInputError:
        return
    assert len({name.casefold() for name in names}) == len(names)
    for name in names:
        path = Path("root") / name
        assert path.resolve().is_relative_to(Path("root").resolve() / name.split("/")[0])
