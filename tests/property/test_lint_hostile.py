"""The lint on spoiled packages: always a report, whatever the files hold."""

import json
import shutil
from pathlib import Path

import pytest
from drafts import CONTEXT, LAYERS, MODEL, ROWS, SCALES, WEIGHTS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_cannlm.lint import RULES, lint

FILES = ("executor.json", "context.json", "tokenizer.json", MODEL, WEIGHTS, ROWS, SCALES, "api_config.json")
SETTINGS = ("executor.json", "context.json", "api_config.json", "../manifest.json", "tokenizer.json")

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=12),
    st.sampled_from(["../x", "/etc/passwd", "a\0b", "\ud800", "C:\\x", MODEL, ".", "qwen3", "spm", CONTEXT, LAYERS, 0]),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


@pytest.fixture(scope="module")
def sound(tiny_packages) -> Path:
    return tiny_packages.built().manifest.parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("hostile")


def fresh(sound: Path, folder: Path) -> Path:
    shutil.rmtree(folder)
    shutil.copytree(sound, folder)
    return folder


def judged(root: Path) -> None:
    """Every rule was either applied or says why not, and what was found can be shown."""
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    report = lint(root)
    assert len(report.checked) + len(report.not_checked) == len(RULES)
    json.dumps(report.as_dict())
    assert all("\n" not in finding.found for finding in report.findings)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def leaves(data: object, path: tuple = ()) -> list[tuple]:
    """Paths of all members of a JSON value, of long objects and lists the first few."""
    found = [path] if path else []
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in list(items)[:12]:
        found += leaves(value, (*path, key))
    return found


common = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@common
@given(data=st.data())
def test_any_value_in_any_setting(sound, folder, data):
    root = fresh(sound, folder)
    (root / "package" / "api_config.json").write_text('{"maxGenTokens": 128, "modelPath": "x"}')
    for _ in range(data.draw(st.integers(1, 3))):
        file = root / "package" / data.draw(st.sampled_from(SETTINGS))
        document = json.loads(file.read_text(encoding="utf-8"))
        *way, last = data.draw(st.sampled_from(leaves(document)))
        inner = document
        for step in way:
            inner = inner[step]
        inner[last] = data.draw(values)
        file.write_text(json.dumps(document), encoding="utf-8")
    judged(root)


@common
@given(name=st.sampled_from(FILES), data=st.data())
def test_flipped_cut_and_grown_files(sound, folder, name, data):
    root = fresh(sound, folder)
    file = root / "package" / name
    raw = bytearray(file.read_bytes() if file.exists() else b"{}")
    how = data.draw(st.sampled_from(["flip", "cut", "grow"]))
    if how == "flip":
        for at in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=8)):
            raw[at] ^= data.draw(st.integers(1, 255))
    elif how == "cut":
        del raw[data.draw(st.integers(0, len(raw))) :]
    else:
        raw += data.draw(st.binary(min_size=1, max_size=64))
    file.write_bytes(raw)
    judged(root)


@common
@given(data=st.data())
def test_flipped_bytes_in_the_graph_of_the_simulator(sound, folder, data):
    from pytest_cannlm.container.core import open_container
    from pytest_cannlm.container.layout import RUNTIME_GRAPH

    root = fresh(sound, folder)
    file = root / "package" / MODEL
    graph = open_container(file).find(RUNTIME_GRAPH)
    raw = bytearray(file.read_bytes())
    for at in data.draw(st.lists(st.integers(graph.start, graph.end - 1), min_size=1, max_size=20)):
        raw[at] = data.draw(st.integers(0, 255))
    file.write_bytes(raw)
    judged(root)


@common
@given(content=st.binary(max_size=300), name=st.sampled_from(FILES))
def test_any_content(sound, folder, content, name):
    root = fresh(sound, folder)
    (root / "package" / name).write_bytes(content)
    judged(root)
