"""What the tests of the gate share: models as real converters write them, and what every refusal must say."""

from pathlib import Path

import pytest

from pytest_cannlm.compat.gate import Decision
from pytest_cannlm.container.kirin import task_info_v2
from pytest_cannlm.container.layout import HeaderFields
from pytest_cannlm.container.modeldef import encode_model_def
from pytest_cannlm.container.writer import Partition, write_container
from pytest_cannlm.errors import GateRefusal


def outcome(decision: Decision, name: str) -> str:
    """The outcome of one check."""
    return next(check.outcome for check in decision.checks if check.name == name)


def write_real(path: Path, *, task: bytes | None = None, header: HeaderFields | None = None, **attrs: str) -> Path:
    """A model for Kirin that a real converter could have written, weights inside."""
    model = encode_model_def(name="m", inputs=[], outputs=[], attrs=attrs, weight_size=4)
    write_container(
        path,
        header=header or HeaderFields(layout="K", modeltype=4),
        partitions=[
            Partition(0, model),
            Partition(1, b"1234"),
            Partition(2, task_info_v2(10) if task is None else task),
        ],
    )
    return path


def write_ascend(path: Path, *, dynamic: bool = False, need_check: int = 0, mark: bytes = b"", **attrs: str) -> Path:
    """An Ascend model of today's layout; one for several shapes has a group of partitions for each."""
    header = HeaderFields(
        layout="A2",
        table_bits=64,
        platform_version=b"1.11.z.0",
        model_num=2 if dynamic else 1,
        need_check_os_cpu_info=need_check,
        userdefineinfo=mark,
    )
    model = encode_model_def(name="m", inputs=[], outputs=[], attrs=attrs, weight_size=0)
    write_container(path, header=header, partitions=[Partition(0, model, group) for group in range(header.model_num)])
    return path


def assert_refused(decision: Decision, code: str, *shown: str) -> None:
    """Refused with that code, on one line that says ``shown``, the rule and the remedy; the exception says the same."""
    line = decision.explain()
    assert (decision.answer, decision.code) == ("refuse", code), line
    assert line.startswith("refuse: ")
    assert len(line.splitlines()) == 1
    for text in (code, "rule: ", "remedy: ", *shown):
        assert text in line
    with pytest.raises(GateRefusal) as caught:
        decision.raise_if_refused()
    assert caught.value.code == code
    for text in shown:
        assert text in str(caught.value)
    assert any(code in reason for reason in decision.reasons())
