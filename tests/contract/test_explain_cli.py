"""``cannlm explain``: its JSON, its text and its exit codes, as others rely on them."""

import io
import json
import re

import pytest

from pytest_cannlm.cli.app import run
from pytest_cannlm.cli.codes import own_codes
from pytest_cannlm.explain.causes import causes

LOG = """\
ATC run failed, Please check the detail log, Try 'atc --help' for more information
E19010: No parser is registered for Op [a, optype [ai.onnx::23::Div]].
        No parser is registered for Op [b, optype [ai.onnx::23::Attention]].
"""


@pytest.fixture
def explain(capsys, monkeypatch, tmp_path):
    """``explain(*arguments, stdin=...)`` -> (exit code, JSON document or text, standard error)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments, stdin=b""):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = run(["explain", *arguments])
        out, err = capsys.readouterr()
        return code, json.loads(out) if "--json" in arguments else out, err

    return call


def test_codes_and_names_are_one_sentence_each(explain):
    code, text, _ = explain("145000", "OH_NN_TIMEOUT", "E10410")
    assert code == 0
    assert [line.split()[1] for line in text.splitlines()] == ["ACL_ERROR_GE_PARAM_INVALID", "OH_NN_TIMEOUT", "file"]


def test_a_number_that_means_several_things_shows_them_all_or_that_of_the_family(explain):
    assert [line.split()[1] for line in explain("3")[1].splitlines()] == ["OH_NN_MEMORY_ERROR", "INVALID_PARAM"]
    assert explain("3", "--family", "LLM engine")[1].startswith("3 INVALID_PARAM (LLM engine): ")


def test_a_log_shows_the_first_error_with_everything_that_it_names(explain, tmp_path):
    (tmp_path / "atc.log").write_text(LOG, encoding="utf-8")
    code, text, _ = explain("atc.log")
    assert code == 0
    first, *said, last = text.splitlines()
    assert first.startswith("First error, line 2: E19010 no parser (message): ")
    assert "a (ai.onnx::23::Div), b (ai.onnx::23::Attention)" in first
    assert [line.startswith("    | ") for line in said] == [True, True]
    assert last.startswith("Then, line 1: ATC run failed")


def test_json_holds_the_same(explain, tmp_path):
    (tmp_path / "atc.log").write_text(LOG, encoding="utf-8")
    code, answer, _ = explain("atc.log", "999999", "--json")
    assert code == 4
    assert answer["unknown"] == 1
    log, number = answer["sources"]
    assert (log["source"], log["kind"], number["kind"]) == ("atc.log", "log", "code")
    first = log["explanations"][0]
    assert (first["code"], first["first"], first["line"], first["known"]) == ("E19010", True, 2, True)
    assert first["items"] == ["a (ai.onnx::23::Div)", "b (ai.onnx::23::Attention)"]
    assert (number["explanations"][0]["known"], number["explanations"][0]["cause"]) == (False, None)


@pytest.mark.parametrize("source", ["999999", "E89998", "NO_SUCH_NAME"])
def test_what_is_not_known_is_shown_and_exits_with_4(explain, source):
    code, text, _ = explain(source, "145000")
    assert code == 4
    assert text.splitlines()[0].startswith(source)
    assert text.splitlines()[0].endswith("not known")


def test_a_message_code_in_small_letters_is_one_and_a_file_of_that_name_is_not(explain, tmp_path):
    assert explain("e19010")[1] == explain("E19010")[1]
    assert explain("e18999")[0] == 4
    (tmp_path / "e19010").write_text("ret = 145000")
    assert explain("e19010", "--json")[1]["sources"][0]["kind"] == "log"


@pytest.mark.parametrize("line", [b"Segmentation fault (core dumped)", b"ERROR: cannot open /dev/npu0", b"[Fail]new"])
def test_a_plain_failure_that_nobody_knows_exits_with_4(explain, line):
    code, text, _ = explain("-", stdin=line)
    assert (code, text) == (4, f"First error, line 1: {line.decode()}: not known\n")


def test_standard_input_is_a_log(explain):
    code, text, _ = explain("-", stdin=b"aclmdlLoadFromFile failed, ret = 145002\n[ERROR] odd \xff\n")
    assert code == 4
    assert text.startswith("First error, line 1: 145002 ")
    assert "Then, line 2: [ERROR] odd" in text


def test_a_log_without_errors_says_so(explain):
    code, text, _ = explain("-", stdin=b"OMG generate offline model success.\n")
    assert (code, text) == (0, "-: nothing in it is known as an error\n")


def test_a_check_report_shows_what_it_holds_and_where_the_error_stands(explain, tmp_path):
    report = {"ops": [{"name": "a", "reason": "Node a type RMSNorm don't support!"}], "counts": list(range(60))}
    (tmp_path / "check_result.json").write_text(json.dumps(report), encoding="utf-8")
    code, text, _ = explain("check_result.json")
    lines = text.splitlines()
    assert code == 0
    assert lines[0] == "ops[0].name = a"
    assert "... and 12 more values" in lines
    assert lines[-1].startswith("First error, ops[0].reason: ")
    assert "a (RMSNorm)" in lines[-1]


@pytest.mark.parametrize("content", ["{", "[ERROR] ret = 145000", "[" * 100_000, '{"a": 1} rest'])
def test_what_only_begins_like_json_is_a_log(explain, tmp_path, content):
    (tmp_path / "a.log").write_text(content, encoding="utf-8")
    assert explain("a.log", "--json")[1]["sources"][0]["kind"] == "log"


def test_a_report_that_is_too_large_is_read_as_a_log(explain, tmp_path):
    values = ",\n".join([f'"{"x" * 1000}"'] * 5000)
    (tmp_path / "a.json").write_text(f'[{values},\n"ret = 145000"]', encoding="utf-8")
    _, answer, _ = explain("a.json", "--json")
    (part,) = answer["sources"]
    assert (part["kind"], part["explanations"][0]["code"], part["explanations"][0]["line"]) == ("log", "145000", 5001)


@pytest.mark.parametrize("arguments", [["nofile.log"], ["."], [], ["3", "--family", "ohnn"], ["lower"], [""]])
def test_wrong_use(explain, arguments):
    code, _, err = explain(*arguments)
    assert code == 2
    assert err.startswith("cannlm: ")


@pytest.mark.parametrize(
    ("code", "family"),
    [
        ("PKG030", "lint"),
        ("CANN_VERSION_MISMATCH", "gate"),
        ("OM_EMPTY", "container"),
        ("CLOUD_BUSY", "cloud"),
        ("KV_CACHE_OVERFLOW", "engine"),
        ("TOOLKIT_MISSING", "vendor"),
        ("SOURCE_UNSAFE", "import"),
    ],
)
def test_our_own_codes_are_known_in_letters_of_any_size(explain, code, family):
    status, text, _ = explain(code)
    assert status == 0
    assert text.startswith(f"{code} ({family}): ")
    assert explain(code.lower())[1] == text == explain(code, "--family", family.upper())[1]


def test_a_code_of_another_family_is_not_known(explain):
    assert explain("PKG030", "--family", "OH_NN")[0] == 4
    assert explain("145000", "--family", "gate")[0] == 4
    assert explain("PKG999")[0] == 4


def test_no_code_of_ours_is_one_of_an_engine():
    ours = {code for entries in own_codes().values() for each in entries for code in each.codes}
    assert len(ours) == sum(len(each.codes) for entries in own_codes().values() for each in entries)
    assert [code for code in ours if causes().named(code)] == []


def test_families_are_known_in_letters_of_any_size(explain):
    assert explain("3", "--family", "oh_nn")[1] == explain("3", "--family", "OH_NN")[1]


@pytest.mark.parametrize("document", ['{"errorCode":145002}', '{"ret":145002}', '[{"a": {"ret": "145002"}}]'])
def test_a_number_of_a_report_is_a_code_where_its_key_says_so(explain, tmp_path, document):
    (tmp_path / "a.json").write_text(document)
    code, answer, _ = explain("a.json", "--json")
    assert [each["code"] for each in answer["sources"][0]["explanations"]] == ["145002"]
    assert code == 0
    (tmp_path / "a.json").write_text('{"rows": 145002}')
    assert explain("a.json", "--json")[1]["sources"][0]["explanations"] == []


@pytest.mark.parametrize("content", [b"", b" \n", bytes(range(256)) * 20, b"IMOD" + bytes(500)])
def test_what_holds_no_text_is_not_known(explain, content):
    code, text, _ = explain("-", stdin=content)
    assert (code, text) == (4, "-: not known: it holds no text\n")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "gbk"])
def test_texts_in_other_encodings_are_texts(explain, encoding):
    assert explain("-", stdin="模型加载成功\tok\r\n".encode(encoding))[0] == 0


def test_errors_behind_the_first_come_in_the_order_of_their_lines(explain):
    log = "ATC run failed\n[ERROR] a\n[ERROR] b\nATC run failed\n[ERROR] c\n"
    said = explain("-", stdin=log.encode())[1]
    assert re.findall(r"line (\d+)", said) == ["2", "1", "3", "5"]


def test_a_log_is_not_sent_to_be_read_as_a_log(explain):
    assert "LOGFILE" in explain("1", "--family", "OH_NN")[1]
    said = explain("-", stdin=b"OH_NNExecutor_RunSync failed, ret = 1\n")[1]
    assert "Read the engine's log lines before it." in said
