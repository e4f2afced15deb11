import subprocess
import sys

import pytest

LIGHT = [
    "pytest_cannlm.measure.judging",
    "pytest_cannlm.measure.sampling",
    "pytest_cannlm.measure.memory",
    "pytest_cannlm.parity.judging",
    "pytest_cannlm.parity.profiles",
    "pytest_cannlm.parity.tokens",
    "pytest_cannlm.parity.text",
    "pytest_cannlm.report.json_report",
    "pytest_cannlm.report.junit",
    "pytest_cannlm.report.terminal",
]


@pytest.mark.parametrize(
    ("modules", "forbidden"),
    [
        (LIGHT, ["numpy", "onnx", "onnxruntime", "rich", "httpx", "pytest", "pytest_cannlm.devices"]),
        (["pytest_cannlm.parity.accumulate"], ["onnx", "onnxruntime", "pytest", "pytest_cannlm.devices"]),
    ],
)
def test_judging_needs_neither_pytest_nor_a_device_nor_anything_heavy(modules, forbidden):
    code = f"import sys, {', '.join(modules)}; print([m for m in {forbidden!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
