"""What the plugin has to know in every pytest run, kept apart because it is loaded in every one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_cannlm.harness.case import Case
    from pytest_cannlm.harness.fallback import CloudLlm
    from pytest_cannlm.harness.session import Harness

MARKS = {
    "npu": "run the test on an NPU with this model and scheme",
    "token_latency": "limit the time per token and to the first token (milliseconds, engine's clock)",
    "memory_ceiling": 'limit the engine\'s memory (sizes with a unit: "400MiB", "1.5GB")',
    "parity": "compare the outputs with the ONNX reference, within a profile or limits by metric name",
    "refuses_load": "a copy of the package built for another CANN or chip, or damaged, is refused",
    "falls_back": "on a chip outside the npu marker's list, an app asks the cloud and leaves the package alone",
}
"""Every marker by name, and in one line what it asserts."""

CASE: pytest.StashKey[Case] = pytest.StashKey()
"""What an NPU test asks for; other tests have none."""

HARNESS: pytest.StashKey[Harness] = pytest.StashKey()
"""The harness of this process, once a test needed it."""

CLOUD: pytest.StashKey[CloudLlm] = pytest.StashKey()
"""The cloud endpoint of this process, once a test needed it."""

RECORD = "cannlm"
"""Attribute of a report that carries the record of an NPU test as plain data."""


PROBLEMS = "cannlm_problems"
"""Key under which a worker of a parallel run hands mistakes in markers to the process that reports the run."""


class Records:
    """The records that reports bring, in the process that reports the run."""

    def __init__(self) -> None:
        self.data: list[dict[str, object]] = []
        self.started = time.time()
        self.problems: list[str] = []
        """Mistakes in markers that the workers of a parallel run found."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the record of a report that has one."""
        record = getattr(report, RECORD, None)
        if record is not None:
            self.data.append(record)


RECORDS: pytest.StashKey[Records] = pytest.StashKey()
