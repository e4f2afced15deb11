"""Fill the generated parts of the documentation from the declarations that the program itself reads.

    python docs/reference/generate.py           # rewrite what is out of date
    python docs/reference/generate.py --check   # change nothing; exit 1 if something is out of date

A generated part stands between ``<!-- generated: NAME -->`` and ``<!-- end -->`` in any page; NAME is a key of BLOCKS.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer

from pytest_cannlm import errors
from pytest_cannlm.affinity.rules import CONFIDENCE, When, rules
from pytest_cannlm.cli.app import app
from pytest_cannlm.cli.codes import own_codes
from pytest_cannlm.compat.damage import DAMAGES
from pytest_cannlm.explain.causes import causes
from pytest_cannlm.lint import RULES
from pytest_cannlm.markers import MARKERS, Marker, Parity
from pytest_cannlm.measure.judging import LATENCY, MEMORY
from pytest_cannlm.models.catalogue import catalogue
from pytest_cannlm.models.families import FAMILIES
from pytest_cannlm.parity.names import METRICS
from pytest_cannlm.parity.profiles import profiles
from pytest_cannlm.plugin.names import MARKS
from pytest_cannlm.settings import OPTIONS
from pytest_cannlm.simulator.profile import load_profile, profile_names

ROOT = Path(__file__).resolve().parents[2]
PART = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

MEANING = {
    "npu": {
        "model": "name from the catalogue, or path of a GGUF file, a Hugging Face folder, or a package made elsewhere",
        "scheme": "how weights are stored; `int8` means `w8a16`",
        "context": "positions of the KV cache, prompt and generated tokens together; a multiple of 64",
        "chips": "chips that the test may run on; on another one it is not run",
        "requires": "capabilities that the engine must have; without them the test is not run",
        "converter": "which converter builds the package; by default the device decides: `simulated` or `omg`",
    },
    "token_latency": {
        "decode_ms": "most milliseconds per generated token after the first (TPOT)",
        "ttft_ms": "most milliseconds to the first token (TTFT, model side)",
        "prefill_tps": "least prompt tokens per second of prefill",
        "p": "percentile that is judged; 50 is the median of round medians",
        "new_tokens": "tokens per timed generation, end-of-text suppressed",
        "prompt": "prompt that is timed; by default the body's first, else a standard one",
        "confidence": "confidence of each bound of the interval",
    },
    "memory_ceiling": {
        "load": "most bytes right after load",
        "peak": "most bytes at any time while the body ran",
        "retained": "most bytes left over after unload",
        "kv_per_token": "most bytes of KV cache per position",
    },
    "parity": {
        "profile": "a set of limits by name; by default the scheme's own, or none if the marker gives limits",
        "against": '`"float"`, `"quantized"`, or the path of another checkpoint',
        "prompts": "texts to compare on; by default a standard text",
        "tokens": "most positions to compare",
    },
    "refuses_load": {
        "cann": "the copy says that it was built for this CANN version",
        "chip": "the copy says that it was built for this chip",
        "damage": "the copy is damaged: " + "; ".join(f"`{name}`: {kind.what}" for name, kind in DAMAGES.items()),
        "error": "the one error code that counts; by default every code that fits what is wrong",
        "at": "who has to refuse: the gate before load, or the engine with the gate switched off",
        "within_s": "seconds within which the refusal has to come; by default 5 at the gate and 600 at the engine",
    },
    "falls_back": {
        "to": "where the request must go",
        "chip": "the chip that the app is told, outside `chips` of `npu`; by default the device's own",
        "app": "the app under test: a process, or a callable of this process; by default `pytest_cannlm.fallback`",
    },
}
"""What every marker argument means. The rest of the table comes from the declarations."""

FIGURES = {
    "decode_ms": "time per token after the first, `(t_N - t_1) / (N - 1)`; the first token is never inside",
    "ttft_ms": "`t_1 - prefill start`: prefill and the choice of the first token; not template, tokenizer or transport",
    "prefill_tps": "prompt tokens over the time of prefill",
    "load": "footprint after load, before the first request",
    "peak": "highest footprint of load, prefill and decode",
    "retained": "footprint after unload",
    "kv_per_token": "growth of the KV cache per position",
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def code(value: object) -> str:
    """``value`` as inline code, or nothing."""
    return f"`{value}`" if value not in (None, "") else ""


def accepted(check: Callable[[Any], Any]) -> str:
    """What an argument's check says that it expects, asked by giving it what it cannot take."""
    said = ""
    for wrong in (object(), -1.0):
        try:
            check(wrong)
        except ValueError as error:
            said = str(error).removeprefix("expected ")
    return said


def markers() -> str:
    """One section per marker: signature and arguments."""
    return "\n\n".join(_marker(cls) for cls in MARKERS.values())


def _marker(cls: type[Marker]) -> str:
    rows = []
    for name, field in cls.arguments().items():
        takes = accepted(field.metadata["check"]) + ("; a list makes parameters" if field.metadata["fans_out"] else "")
        default = f'"{field.default}"' if isinstance(field.default, str) else repr(field.default)
        rows.append([code(name), code(default), takes, MEANING[cls.name][name]])
    parts = [f"## {cls.name}", f"{MARKS[cls.name][0].upper()}{MARKS[cls.name][1:]}."]
    parts.append(table(["argument", "default", "takes", "meaning"], rows))
    if cls is Parity:
        names = ", ".join(code(name) for name in METRICS)
        parts.append(f"Every metric is an argument too, and its value a limit: {names}. See [metrics](metrics.md).")
    return "\n\n".join(parts)


def marker_summary() -> str:
    """The table of the README."""
    rows = []
    for name, cls in MARKERS.items():
        arguments = ", ".join(
            code(key if field.default is None else f"{key}={_short(field.default)}")
            for key, field in cls.arguments().items()
        )
        if cls is Parity:
            arguments += ", any metric by name"
        rows.append([code(name), arguments, MARKS[name]])
    return table(["marker", "arguments", "asserts"], rows)


def _short(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def options() -> str:
    """Every option with its four spellings."""
    rows = []
    for option in OPTIONS:
        default = " ".join(option.default) if isinstance(option.default, tuple) else option.default
        shown = "off" if default is False else default
        takes = " or ".join(option.choices) or (option.metavar or "")
        rows.append(
            [code(option.flag), takes, code(shown), option.help, code(option.env), code(option.ini), code(option.key)]
        )
    head = ["command line", "takes", "default", "meaning", "environment", "pytest's ini", "TOML"]
    return table(head, rows)


def figures() -> str:
    """What the limits of token_latency and memory_ceiling speak of."""
    rows = [
        [code(name), code(quantity.figures[0]), FIGURES[name], quantity.unit, quantity.better, quantity.look_at]
        for name, quantity in {**LATENCY, **MEMORY}.items()
    ]
    return table(["limit", "figure", "definition", "unit", "better", "look at when it fails"], rows)


def metrics() -> str:
    """Every parity metric."""
    rows = [
        [code(name), metric.title, metric.unit, metric.better, "logits" if metric.needs_logits else "text"]
        for name, metric in METRICS.items()
    ]
    return table(["metric", "definition", "unit", "better", "needs"], rows)


def parity_profiles() -> str:
    """Every row of the profiles file."""
    rows = []
    for row in profiles().rows:
        size = f"≥ {row.min_parameters / 1e9:g}B parameters" if row.min_parameters else ""
        applies = ", ".join(part for part in (row.model, size, " or ".join(row.quantizers)) if part) or "any"
        limits = ", ".join(
            f"{name} {'≤' if METRICS[name].better == 'lower' else '≥'} {value:g}" for name, value in row.limits.items()
        )
        rows.append([code(row.name), row.against, applies, limits, row.why])
    return table(["profile", "against", "applies to", "limits", "where the numbers come from"], rows)


def timing_numbers() -> str:
    """The numbers of every chip profile, each with its source."""
    parts = []
    for name in profile_names():
        profile = load_profile(name)
        rows = [
            [code(key), f"{number.value:g}", number.unit, number.status, number.source]
            for key, number in profile.numbers.items()
        ]
        heading = f"### {profile.title}"
        parts.append(f"{heading}\n\n{table(['number', 'value', 'unit', 'status', 'from'], rows)}")
    return "\n\n".join(parts)


def commands() -> str:
    """One section per command of ``cannlm``."""
    group: Any = typer.main.get_command(app)
    return "\n\n".join(_command(name, command) for name, command in sorted(group.commands.items()))


def _command(name: str, command: Any) -> str:
    rows, arguments = [], []
    for parameter in command.params:
        positional = parameter.param_type_name == "argument"
        if positional:
            arguments.append(str(parameter.name).upper())
        shown = str(parameter.name).upper() if positional else "/".join((*parameter.opts, *parameter.secondary_opts))
        plain = isinstance(parameter.default, str | int) and not isinstance(parameter.default, bool)
        default = "required" if parameter.required else code(parameter.default) if plain else ""
        rows.append([code(shown), default, parameter.help or ""])
    heading = " ".join(["## cannlm", name, *arguments])
    return f"{heading}\n\n{command.help}\n\n{table(['argument', 'default', 'meaning'], rows)}"


def exceptions() -> str:
    """Every exception with the exit status that ``cannlm`` gives it."""
    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, errors.CannlmError)]
    classes.sort(key=lambda cls: inspect.getsourcelines(cls)[1])
    rows = [[code(cls.__name__), str(cls.exit_code), _first_sentence(cls)] for cls in classes]
    return table(["exception", "exit", "meaning"], rows)


def _first_sentence(cls: type) -> str:
    text = " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())
    return text.split(". ")[0].rstrip(".").replace("``", "`")


def codes_of(family: str) -> str:
    """Our own codes of one family."""
    rows = [[", ".join(map(code, each.codes)), each.meaning, each.next] for each in own_codes()[family]]
    return table(["code", "meaning", "what to do"], rows)


def engine_codes() -> str:
    """Every code that has a known meaning, one table per family."""
    parts = []
    for name, family in causes().families.items():
        rows = [
            [code(known.code), known.name, known.cause, known.next] for known in causes().codes if known.family == name
        ]
        if rows:
            head = ["code", "name", "meaning", "what to do"]
            parts.append(f"### {name}\n\nFrom {family.source}.\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def log_texts() -> str:
    """Every text of a log that has a known meaning."""
    rows = [
        [code(known.pattern), known.family, known.cause, "" if known.noise else known.next] for known in causes().texts
    ]
    return table(["text", "where", "meaning", "what to do"], rows)


def models() -> str:
    """The catalogue."""
    rows = [
        [code(entry.name), entry.title, entry.family, entry.license, f"{entry.download_bytes / 1e6:,.0f} MB"]
        for entry in catalogue().values()
    ]
    return table(["name", "model", "family", "licence", "download"], rows)


def families() -> str:
    """What can be built."""
    rows = [
        [
            code(family.name),
            code(family.architecture),
            "folder" if family.gguf_interleaved is None else "folder, GGUF",
            "a part or all of a head" if family.partial_rotary_factor else "whole heads",
            code(family.tokenizer_type),
        ]
        for family in FAMILIES.values()
    ]
    return table(["`model_type`", "architecture", "read from", "rotary embedding of", "tokenizer of the engine"], rows)


def lint_rules() -> str:
    """Every rule of ``cannlm lint``."""
    return table(["code", "severity", "finding", "why"], [[code(r.code), r.severity, r.title, r.why] for r in RULES])


def affinity_marks() -> str:
    """How sure a rule of affinity is."""
    return table(["mark", "meaning"], [[mark, meaning] for mark, meaning in CONFIDENCE.items()])


def affinity_rules() -> str:
    """Everything that affinity looks for besides operators."""
    rows = [
        [
            code(rule.name),
            rule.outcome,
            rule.title,
            ", ".join(rule.toolchains),
            _limits(rule.limit),
            rule.confidence,
            rule.why,
            rule.source,
        ]
        for rule in rules().general.values()
    ]
    return table(["rule", "outcome", "finding", "converter", "limit", "mark", "why", "source"], rows)


def _limits(limit: Mapping[str, Any]) -> str:
    shown = {name: " to ".join(map(str, value)) if isinstance(value, list) else value for name, value in limit.items()}
    values = set(shown.values())
    return str(values.pop()) if len(values) == 1 else ", ".join(f"{name} {value}" for name, value in shown.items())


def affinity_operators() -> str:
    """Every operator rule, in the order in which they are tried."""
    rows = []
    for rule in rules().operators:
        names = ", ".join(f"{rule.domain}::{name}" if rule.domain else name for name in rule.operators)
        names += f" [{_condition(rule.when)}]" if rule.when else ""
        where = ", ".join(rule.toolchains) + (f" on {', '.join(rule.chips)}" if rule.chips else "")
        rows.append(
            [
                names.replace("*", "every other"),
                rule.outcome,
                where,
                rule.confidence,
                rule.why,
                rule.instead,
                rule.source,
            ]
        )
    return table(["operators", "outcome", "converter", "mark", "why", "instead", "source"], rows)


def _condition(when: When) -> str:
    if when.attribute:
        return f"{when.attribute} is {' or '.join(when.values)}"
    inputs = (
        f"input {' and '.join(map(str, when.inputs))}" if when.every else f"input {' or '.join(map(str, when.inputs))}"
    )
    kind = {None: "", True: "constant ", False: "computed "}[when.constant]
    made = f"made by {' or '.join(when.made_by)}" if when.made_by else f"of {', '.join(when.types)}"
    return f"{kind}{inputs} {made}"


BLOCKS: dict[str, Callable[[], str]] = {
    "markers": markers,
    "marker-summary": marker_summary,
    "options": options,
    "figures": figures,
    "metrics": metrics,
    "parity-profiles": parity_profiles,
    "timing-numbers": timing_numbers,
    "commands": commands,
    "exceptions": exceptions,
    **{f"codes-{family}": partial(codes_of, family) for family in own_codes()},
    "engine-codes": engine_codes,
    "log-texts": log_texts,
    "models": models,
    "families": families,
    "lint-rules": lint_rules,
    "affinity-marks": affinity_marks,
    "affinity-rules": affinity_rules,
    "affinity-operators": affinity_operators,
}


def pages() -> list[Path]:
    """Every page of the documentation."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def filled(text: str) -> str:
    """A page's text with its generated parts as they should be."""
    made: dict[str, str] = {}

    def fill(match: re.Match[str]) -> str:
        name = match[2]
        made.setdefault(name, BLOCKS[name]())
        return f"{match[1]}\n{made[name]}\n\n{match[3]}"

    return PART.sub(fill, text)


def outdated() -> dict[Path, str]:
    """Pages that are not as they should be, each with what it should be."""
    found = {}
    for page in pages():
        text = page.read_text(encoding="utf-8")
        right = filled(text)
        if right != text:
            found[page] = right
    return found


def main() -> int:
    """Rewrite what is out of date, or with ``--check`` name it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if something is out of date")
    check = parser.parse_args().check
    found = outdated()
    for page, text in found.items():
        print(f"{'out of date' if check else 'written'}: {page.relative_to(ROOT)}")
        if not check:
            page.write_text(text, encoding="utf-8")
    return int(check and bool(found))


if __name__ == "__main__":
    raise SystemExit(main())
