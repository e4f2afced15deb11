"""What the loader of an Ascend server compares beyond chip and CANN version, asked before it does.

It holds the operator package of a model with dynamic shapes against the installed one, text by text, and the host
that a model with libraries inside was built for against its own. Valid for Python 3.10.
"""

from __future__ import annotations

from pytest_cannlm.compat.checks import HOST, OPERATORS, Check, Outcome
from pytest_cannlm.compat.origin import Attributes, text_of
from pytest_cannlm.compat.target import Target
from pytest_cannlm.container.core import Container

_CARRIES_LIBRARIES = 1
"""Value of ``need_check_os_cpu_info`` with which the loader asks for the host instead of the operator package."""


def loader_checks(container: Container, attributes: Attributes, target: Target) -> list[Check]:
    """The checks that the loader will make of this model; none for a static one, and none for Kirin."""
    header = container.header
    if container.dialect != "ascend":
        return []
    if header.need_check_os_cpu_info == _CARRIES_LIBRARIES:
        return [_host(container, attributes, target)]
    return [_operator_package(container, attributes, target)] if header.multi_model else []


def _operator_package(container: Container, attributes: Attributes, target: Target) -> Check:
    built, installed = text_of(attributes, "opp_version"), target.opp_version
    rule = "the loader compares the operator package of a model with dynamic shapes with the installed one, as texts"
    outcome: Outcome
    if target.policy == "off":
        outcome, rule = "off", f"policy off: versions are not compared, though {rule}"
    elif built is None:
        outcome, rule = "unknown", f"{rule}; it would compare an empty text and refuse"
    elif installed is None:
        outcome, rule = "unknown", f"{rule}; which one is installed is not known"
    else:
        outcome = "ok" if _bare(built) == _bare(installed) else "mismatch"
    return Check(
        name=OPERATORS,
        outcome=outcome,
        code={"mismatch": "OPP_VERSION_MISMATCH", "unknown": "OPP_VERSION_UNKNOWN"}.get(outcome),
        found=built or "no opp_version",
        found_in=f"attributes of {container.path.name}",
        expected=installed or "no operator package's version",
        expected_from="Version= in opp/version.info of the target",
        rule=rule,
        remedy=""
        if outcome in ("ok", "off")
        else "Convert the model again with the operator package that the target has, and name that version "
        "(cannlm check --opp-version)",
    )


def _host(container: Container, attributes: Attributes, target: Target) -> Check:
    built = (text_of(attributes, "host_env_os"), text_of(attributes, "host_env_cpu"))
    have = (target.host_os, target.host_cpu)
    known = None not in built and None not in have
    outcome: Outcome = ("ok" if built == have else "mismatch") if known else "unknown"
    rule = "a model that carries libraries runs on the operating system and processor that they were built for"
    if None in built:
        rule += "; the loader would compare an empty text and refuse"
    return Check(
        name=HOST,
        outcome=outcome,
        code={"mismatch": "HOST_MISMATCH", "unknown": "HOST_UNKNOWN"}.get(outcome),
        found="/".join(each or "nothing" for each in built),
        found_in=f"host_env_os and host_env_cpu of {container.path.name}",
        expected="/".join(each or "nothing" for each in have),
        expected_from=f"operating system and processor of the host of {target.device}",
        rule=rule,
        remedy=""
        if outcome == "ok"
        else "Convert the model on such a host, and name it (cannlm check --host-os linux --host-cpu aarch64)",
    )


def _bare(version: str) -> str:
    """A trailing dot stands in some ``version.info`` files and not in others."""
    return version.strip().rstrip(".")
