"""An app that asks its NPU first and the cloud only where that is allowed: the policy to import, and the app to run.

    from pytest_cannlm.fallback import CloudModel, Fallback, Secret

    python -m pytest_cannlm.fallback "Why is the sky blue?"

As a program it reads ``CANNLM_PACKAGE`` and ``CANNLM_NPU`` (the package, and the device to run it on; there is no
default device), ``CANNLM_CHIP`` (the chip, where it shall not be detected), ``CANNLM_FALLBACK`` (``cloud`` allows it)
and ``OPENAI_BASE_URL``, ``OPENAI_API_KEY``, ``OPENAI_MODEL``. The text goes to standard output, the steps to standard
error; exit statuses are those of ``cannlm``.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from pytest_cannlm.cloud.client import CloudAnswer, CloudModel
from pytest_cannlm.cloud.detect import Detected, Probe, detect_chip, device_probes, read_parameter
from pytest_cannlm.cloud.policy import Answer, Fallback, NpuWay, logger
from pytest_cannlm.cloud.secret import Secret
from pytest_cannlm.errors import BothWaysFailed, CannlmError, CloudError, DeviceError, EngineError, UsageError

__all__ = [
    "Answer",
    "BothWaysFailed",
    "CloudAnswer",
    "CloudError",
    "CloudModel",
    "Detected",
    "Fallback",
    "NpuWay",
    "PackageOnDevice",
    "Probe",
    "Secret",
    "detect_chip",
    "device_probes",
    "read_parameter",
]

_ENABLED = "cloud"


class PackageOnDevice:
    """The NPU way of the program: a package of ``cannlm build`` on a device, greedy, with the model's chat template."""

    def __init__(self, package: Path | None, device: str | None, *, max_new_tokens: int = 128) -> None:
        """Either may be None: what is missing is an error when the NPU is really asked."""
        self._package = package
        self._device = device
        self._max_new_tokens = max_new_tokens
        self._served_by = "nobody yet"

    @property
    def served_by(self) -> str:
        """Who computed the last answer, as the engine says it."""
        return self._served_by

    def generate(self, prompt: str) -> Iterator[str]:
        """The whole answer as one piece."""
        from pytest_cannlm.harness.single import ask
        from pytest_cannlm.settings import resolve

        if self._device is None:
            raise DeviceError("no NPU is named", remedy="Set CANNLM_NPU to a device, for example sim or hdc")
        if self._package is None:
            raise EngineError("no model package is named", remedy="Set CANNLM_PACKAGE to a package folder")
        reply = ask(
            self._package,
            prompt,
            device=self._device,
            max_new_tokens=self._max_new_tokens,
            greedy=True,
            raw=False,
            special_tokens=False,
            settings=resolve(environment=os.environ),
        )
        self._served_by = reply.served_by
        yield reply.text


def main(arguments: Sequence[str] | None = None, environment: Mapping[str, str] | None = None) -> int:
    """Ask one thing; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m pytest_cannlm.fallback", description="Ask the NPU, else the cloud."
    )
    parser.add_argument("prompt", help="what to ask")
    parser.add_argument("--timeout", type=float, default=30.0, metavar="S", help="most seconds for the cloud (30)")
    parser.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="most tokens of the NPU (128)")
    given = parser.parse_args(arguments)
    environment = os.environ if environment is None else environment
    said = logging.StreamHandler(sys.stderr)
    said.setFormatter(logging.Formatter("fallback: %(message)s"))
    logger.addHandler(said)
    logger.setLevel(logging.INFO)
    try:
        app = _app(environment, timeout_s=given.timeout, max_new_tokens=given.max_new_tokens)
        print(app.ask(given.prompt).text)
    except CannlmError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    finally:
        logger.removeHandler(said)
    return 0


def _app(environment: Mapping[str, str], *, timeout_s: float, max_new_tokens: int) -> Fallback:
    device = environment.get("CANNLM_NPU", "").strip() or None
    package = environment.get("CANNLM_PACKAGE", "").strip()
    wanted = environment.get("CANNLM_FALLBACK", "").strip()
    if wanted not in ("", _ENABLED):
        raise UsageError(
            "CANNLM_FALLBACK must be empty or cloud", field="CANNLM_FALLBACK", found=wanted, expected=_ENABLED
        )
    probes = device_probes() if device is None else (Probe(f"the device {device}", partial(_chip_of, device)),)
    return Fallback(
        npu=PackageOnDevice(Path(package) if package else None, device, max_new_tokens=max_new_tokens),
        cloud=partial(CloudModel.from_environment, environment, timeout_s=timeout_s) if wanted else None,
        detect=partial(detect_chip, probes, environment=environment),
    )


def _chip_of(device: str) -> str:
    """The chip of a device that was named; nothing is started there."""
    from pytest_cannlm.devices import open_device, parse_device

    opened = open_device(parse_device(device))
    try:
        return opened.info.chip
    finally:
        opened.close()


if __name__ == "__main__":
    raise SystemExit(main())
