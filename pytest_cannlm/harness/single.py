"""One package, one question: what the command line asks of the harness, without a test around it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pytest_cannlm.devices import open_device, parse_device
from pytest_cannlm.errors import PackageError
from pytest_cannlm.harness.case import Case
from pytest_cannlm.harness.npu import Npu, Reply
from pytest_cannlm.harness.run import Run
from pytest_cannlm.harness.session import load
from pytest_cannlm.settings import Settings


def ask(
    package: Path,
    prompt: str,
    *,
    device: str,
    max_new_tokens: int,
    greedy: bool,
    raw: bool,
    special_tokens: bool,
    settings: Settings,
) -> Reply:
    """Load a package on a device and ask one thing, with the sampling of its ``context.json`` unless ``greedy``.

    :param raw: continue the text as it is, without the chat template.
    :param special_tokens: let texts in the prompt that spell special tokens become them.
    :raises CannlmError: wrong package, device, gate or engine; each names file and remedy.
    """
    from pytest_cannlm.build import locate_package
    from pytest_cannlm.compat.gate import Target
    from pytest_cannlm.compat.pairs import read_pairs

    found = locate_package(package)
    if not raw and not found.data:
        raise PackageError(
            "there is no manifest.json beside the package, and the chat template stands in it",
            file=found.package.parent,
            remedy="Continue a finished prompt with --raw, or run a folder that 'cannlm build' made",
        )
    spec = parse_device(device)
    opened = open_device(spec)
    try:
        info = opened.info
        target = Target(
            chip=info.chip,
            cann=info.cann,
            device_version=info.device_version,
            simulated=info.simulated,
            policy=settings.cann_policy,
            on_unknown=settings.cann_unknown,
            chips=(info.chip,),
            version_pairs=read_pairs(settings.version_pairs),
        )
        client = opened.agent()
        load(client, found, target)
        case = Case(device=spec, model=str(found.data.get("model", {}).get("name", package.name)))
        npu = Npu()
        npu.attach(Run(case, info, found, client, client.capabilities(), target, client.status()))
        sampling = {"do_sample": False} if greedy else sampling_of(found.package)
        request = npu.generate if raw else npu.chat
        return request(prompt, max_new_tokens=max_new_tokens, special_tokens=special_tokens, **sampling)
    finally:
        opened.close()


def sampling_of(package: Path) -> dict[str, Any]:
    """The sampler settings of a package's ``context.json``, as keyword arguments of :meth:`Npu.chat`.

    :raises PackageError: the file is missing or is not JSON.
    """
    path = package / "context.json"
    try:
        sampler = json.loads(path.read_text(encoding="utf-8")).get("sampler", {})
    except (OSError, ValueError) as error:
        raise PackageError("context.json cannot be read", file=path, found=error, code="PACKAGE_INCOMPLETE") from None
    names = {
        "do_sample": "do_sample",
        "temperature": "temperature",
        "top-k": "top_k",
        "top-p": "top_p",
        "seed": "seed",
        "repetition_penalty": "repetition_penalty",
    }
    return {ours: sampler[theirs] for theirs, ours in names.items() if theirs in sampler}
