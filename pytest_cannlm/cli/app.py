"""The commands. Each collects what was asked for, calls the room that does it, and puts the result into an answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pytest_cannlm import __version__
from pytest_cannlm.cli.answers import BAD, GOOD, Answer, from_os_error, show, show_error
from pytest_cannlm.cli.describing import described, with_contradictions
from pytest_cannlm.cli.importing import import_folder
from pytest_cannlm.cli.options import Cache, Json, Pairs, Toolkit
from pytest_cannlm.errors import BadInputError, CannlmError, UsageError
from pytest_cannlm.progress import Progress, progress_for
from pytest_cannlm.settings import Settings, read_toml_files, resolve

app = typer.Typer(
    help="Build language models for Kirin NPUs, run them, and look into what was built.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_ClickError: Any = typer.BadParameter.__mro__[2]
"""The base of the parser's own errors; typer brings its own copy of click and does not export it."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Errors are one message, never a traceback."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    as_json = "--json" in arguments
    try:
        if not arguments:
            app(["--help"], prog_name="cannlm", standalone_mode=False)
            return UsageError.exit_code
        code = app(arguments, prog_name="cannlm", standalone_mode=False)
        return code if isinstance(code, int) else GOOD
    except CannlmError as error:
        return show_error(error, as_json=as_json)
    except _ClickError as error:
        return show_error(UsageError(error.format_message()), as_json=as_json)
    except OSError as error:
        return show_error(from_os_error(error), as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        print("cannlm: interrupted", file=sys.stderr)
        return 130


def _version(wanted: bool) -> None:
    if wanted:
        print(f"cannlm {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Build language models for Kirin NPUs, run them, and look into what was built."""


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A model of the catalogue.")],
    cache: Cache = None,
    offline: Annotated[bool, typer.Option("--offline", help="Download nothing.")] = False,
    json_: Json = False,
) -> int:
    """Get a model of the catalogue into the model cache; nothing is done if it is there."""
    from pytest_cannlm.models.catalogue import find
    from pytest_cannlm.models.fetch import fetch as fetch_model

    entry = find(name)
    path = fetch_model(entry.name, cache=_settings(cache).cache_folder, progress=_progress(), offline=offline)
    data = {"name": entry.name, "title": entry.title, "path": str(path), "license": entry.license}
    return show(Answer(data, [f"{entry.title} ({entry.license})", str(path)]), as_json=json_)


@app.command()
def build(
    model: Annotated[str, typer.Argument(help="A model of the catalogue, or the path of a checkpoint.")],
    scheme: Annotated[str, typer.Option(help="fp16, w8a16 (int8) or w4a16.")] = "w4a16",
    group_size: Annotated[int | None, typer.Option(help="Weights per 4-bit scale.")] = None,
    quantizer: Annotated[str, typer.Option(help="How weights are rounded: rtn, gptq, awq or awq+gptq.")] = "rtn",
    calibration: Annotated[
        Path | None, typer.Option(help="Text, or .jsonl, for all but rtn (default: a bundled text).", metavar="FILE")
    ] = None,
    keep_8bit: Annotated[
        float | None,
        typer.Option(
            "--keep-8bit",
            help="In w4a16, this share of the projections' weights keeps 8 bits: where 4 would cost most.",
            metavar="PERCENT",
        ),
    ] = None,
    context: Annotated[int, typer.Option(help="Positions of the KV cache.")] = 2048,
    chip: Annotated[str, typer.Option(help="The chip to build for.")] = "KirinX90",
    cann: Annotated[
        str | None, typer.Option(help="The CANN version to build for (default: the toolkit's; simulated: 6.1.1.0).")
    ] = None,
    converter: Annotated[str, typer.Option(help="simulated, omg or atc.")] = "simulated",
    toolkit: Toolkit = None,
    quant_params: Annotated[
        Path | None, typer.Option(help="Output of cannlm dopt: 4-bit weights for omg.", metavar="DIR")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for a copy of the package.", metavar="DIR")] = None,
    coefficients: Annotated[
        Path | None, typer.Option(help="Write codes and scales here too, as .safetensors.", metavar="FILE")
    ] = None,
    cache: Cache = None,
    json_: Json = False,
) -> int:
    """Quantize, export, convert and assemble a package."""
    from pytest_cannlm.build import Recipe
    from pytest_cannlm.build import build as build_package
    from pytest_cannlm.build.coefficient_file import write_coefficients
    from pytest_cannlm.cli.vendor import cann_to_build_for, notes_on
    from pytest_cannlm.harness.session import short_name
    from pytest_cannlm.models.fetch import resolve_model

    if coefficients is not None and converter != "simulated":
        raise UsageError(
            f"the coefficients are inside what {converter} makes", field="--coefficients", found=coefficients
        )
    folder, progress = _settings(cache).cache_folder, _progress()
    recipe = Recipe(
        model=short_name(model),
        checkpoint=resolve_model(model, cache=folder, progress=progress),
        scheme=scheme,
        group_size=group_size,
        quantizer=quantizer,
        calibration=calibration,
        keep_8bit=keep_8bit,
        context=context,
        chip=chip,
        cann=cann_to_build_for(cann, converter=converter, toolkit=toolkit),
        converter=converter,
        toolkit=toolkit,
        quant_params=quant_params,
    )
    built = build_package(recipe, cache=folder, progress=progress, out=out)
    if coefficients is not None:
        write_coefficients(built.package, coefficients)
    steps = [{"step": one.step, "cached": one.cached, "seconds": round(one.seconds, 3)} for one in built.steps]
    lines = [f"{one.step}: {'cached' if one.cached else f'{one.seconds:.1f} s'}" for one in built.steps]
    notes = notes_on(recipe)
    data = {"package": str(built.package), "steps": steps, "manifest": str(built.manifest), "notes": notes}
    return show(Answer(data, [*lines, *(f"note: {note}" for note in notes), str(built.package)]), as_json=json_)


@app.command()
def dopt(
    model: Annotated[Path, typer.Argument(help="A Hugging Face folder.")],
    out: Annotated[Path, typer.Option(help="Folder for the results; an unfinished one goes on.", metavar="DIR")],
    toolkit: Toolkit = None,
    chip: Annotated[str, typer.Option(help="The chip to quantize for.")] = "KirinX90",
    group_size: Annotated[int, typer.Option(help="Weights per 4-bit scale.")] = 128,
    calibration: Annotated[
        Path | None, typer.Option(help='JSON list of {"text": …} (default: wikitext2, which dopt fetches).')
    ] = None,
    python: Annotated[
        str, typer.Option(help="The interpreter that has what dopt needs: Python 3.10 and torch.")
    ] = "python3",
    json_: Json = False,
) -> int:
    """Quantize with the vendor's dopt, in its three stages, and check what they leave. Needs a GPU."""
    from pytest_cannlm.cli.vendor import run_dopt

    answer = run_dopt(
        model,
        out=out,
        toolkit=toolkit,
        chip=chip,
        group_size=group_size,
        calibration=calibration,
        python=python,
        progress=_progress(),
    )
    return show(answer, as_json=json_)


@app.command("run")
def run_package(
    package: Annotated[Path, typer.Argument(help="A package folder, or the folder above it.")],
    prompt: Annotated[str, typer.Option(help="What to ask.")],
    max_new_tokens: Annotated[int, typer.Option(help="At most so many tokens.")] = 128,
    greedy: Annotated[bool, typer.Option("--greedy", help="No sampling, whatever context.json says.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")] = False,
    special_tokens: Annotated[
        bool, typer.Option("--special-tokens", help="Let texts such as <|im_end|> in the prompt become special tokens.")
    ] = False,
    npu: Annotated[str, typer.Option(help="The device.", metavar="DEVICE")] = "sim",
    json_: Json = False,
) -> int:
    """Load a package on a device, ask one thing, and show the answer with its times."""
    from pytest_cannlm.harness.single import ask

    if not package.exists():
        raise BadInputError("there is no such folder", file=package, expected="a package folder, or the one above it")
    reply = ask(
        package,
        prompt,
        device=npu,
        max_new_tokens=max_new_tokens,
        greedy=greedy,
        raw=raw,
        special_tokens=special_tokens,
        settings=_settings(),
    )
    keys = ("text", "tokens", "finish", "ttft_ms", "tpot_ms", "kind", "served_by")
    times = ", ".join(
        f"{label} {value:.1f} ms"
        for label, value in (("first token after", reply.ttft_ms), ("then per token", reply.tpot_ms))
        if value is not None
    )
    facts = f"[{len(reply.tokens)} tokens, {times} ({reply.kind}), {reply.finish}; served by {reply.served_by}]"
    data = {key: getattr(reply, key) for key in keys}
    return show(Answer(data, [reply.text, facts]), as_json=json_)


app.command("import")(import_folder)


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="An .om or .omc file, or a package folder.")], json_: Json = False
) -> int:
    """Show what an offline-model file says about itself; a damaged one is named by what is wrong with it."""
    from pytest_cannlm.build import locate_package
    from pytest_cannlm.compat.pairs import read_pairs
    from pytest_cannlm.container.inspect import describe

    if not file.exists():
        raise BadInputError("there is no such file", file=file)
    if file.is_dir():
        models = sorted(locate_package(file).package.glob("*.om*"))
        if len(models) != 1:
            raise UsageError("the folder holds not exactly one model file", file=file, found=len(models), expected=1)
        file = models[0]
    facts = with_contradictions(describe(file), read_pairs(_settings().version_pairs))
    lines = [str(file), *described(facts)]
    return show(Answer({"file": str(file), **facts}, lines, BAD if facts["error"] else GOOD), as_json=json_)


@app.command()
def check(
    package: Annotated[Path, typer.Argument(help="A package folder, the folder above it, or a single model file.")],
    chip: Annotated[str, typer.Option(help="The chip of the target.")],
    cann: Annotated[
        str | None, typer.Option(help="The CANN version of the target; needed unless --policy is off.")
    ] = None,
    simulated: Annotated[
        bool | None, typer.Option("--simulated/--real", help="What the target is (default: what the package is for).")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="exact, window or off.")] = None,
    version_pairs: Pairs = None,
    same_architecture: Annotated[
        list[str] | None,
        typer.Option(help="Ascend chips that count as one, such as Ascend910B2,Ascend910B3; repeatable."),
    ] = None,
    opp_version: Annotated[
        str | None, typer.Option(help="Version of the target's operator package, for Ascend models of dynamic shape.")
    ] = None,
    host_os: Annotated[
        str | None, typer.Option(help="The target's operating system, for Ascend models with libraries: linux.")
    ] = None,
    host_cpu: Annotated[str | None, typer.Option(help="The target's processor, for the same: aarch64.")] = None,
    json_: Json = False,
) -> int:
    """Ask the gate whether a package may be loaded on a target, without loading it."""
    from pytest_cannlm.cli.checking import check_package
    from pytest_cannlm.cli.target import target_of

    target = target_of(
        _settings(cann_policy=policy, version_pairs=version_pairs),
        chip=chip,
        cann=cann,
        simulated=simulated,
        opp_version=opp_version,
        host_os=host_os,
        host_cpu=host_cpu,
        same_architecture=same_architecture or (),
    )
    return show(check_package(package, target), as_json=json_)


@app.command()
def affinity(
    model: Annotated[Path, typer.Argument(help="An .onnx file.")],
    chip: Annotated[str, typer.Option(help="The chip to convert for.")] = "KirinX90",
    path: Annotated[str, typer.Option(help="Whose rules: omg, atc or both.")] = "omg",
    shape: Annotated[
        list[str] | None, typer.Option(help="Whole shape of an input; repeatable.", metavar="INPUT=1,64")
    ] = None,
    gears: Annotated[
        list[str] | None,
        typer.Option(help="Sizes of a symbolic dimension, one for each gear; repeatable.", metavar="DIMENSION=1,64"),
    ] = None,
    json_: Json = False,
) -> int:
    """Say whether a converter will take a graph: which nodes not, why, and what to do. Runs no converter."""
    from pytest_cannlm.cli.affinity import judge

    return show(judge(model, chip=chip, path=path, shapes=shape or (), gears=gears or ()), as_json=json_)


@app.command("lint")
def lint_folder(
    package: Annotated[Path, typer.Argument(help="A package folder, or the folder above it.")],
    hashes: Annotated[
        bool | None,
        typer.Option("--hashes/--no-hashes", help="Hash every file that the manifest lists (default: up to 1 GiB)."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
    json_: Json = False,
) -> int:
    """Say whether a folder is a package that the engine will load and that means what it says. Changes nothing."""
    from pytest_cannlm.cli.linting import lint_package

    return show(lint_package(package, hashes=hashes, strict=strict), as_json=json_)


@app.command()
def doctor(
    npu: Annotated[
        list[str] | None,
        typer.Option(help="Hold the toolkits against this device (default: that of the settings).", metavar="DEVICE"),
    ] = None,
    hash_: Annotated[
        bool, typer.Option("--hash", help="Identify DDK archives by their hash; reads each whole, 260 MB and more.")
    ] = False,
    version_pairs: Pairs = None,
    cache: Cache = None,
    json_: Json = False,
) -> int:
    """Say what this machine can do, which CANN toolkits it has, and what is wrong, with the fix. Uses no network."""
    from pytest_cannlm.cli.doctor import examine

    settings = _settings(cache, npu=npu or None, version_pairs=version_pairs)
    return show(examine(settings, environment=os.environ, hash_archives=hash_), as_json=json_)


@app.command()
def explain(
    sources: Annotated[list[str], typer.Argument(help="Codes, names of codes, log files, or - for standard input.")],
    family: Annotated[
        str | None, typer.Option(help="Whose codes they are where numbers overlap, such as OH_NN.", metavar="NAME")
    ] = None,
    json_: Json = False,
) -> int:
    """Say what an engine, a converter or a device means by a code or a log: the cause and the next step."""
    from pytest_cannlm.cli.explaining import explain as explain_sources

    return show(explain_sources(sources, family=family, standard_input=sys.stdin.buffer), as_json=json_)


def _settings(cache: Path | None = None, **given: object) -> Settings:
    """The settings that hold where the command was started, the command's own options first."""
    here = Path.cwd()
    return resolve(
        command_line={"cache": cache, **given}, environment=os.environ, files=read_toml_files(here), folder=here
    )


def _progress() -> Progress:
    return progress_for(sys.stderr)
