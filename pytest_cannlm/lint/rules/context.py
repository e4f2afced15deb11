"""PKG070 to PKG074: what ``context.json`` means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_cannlm.compat.places import CONTEXT
from pytest_cannlm.lint.facts import PackageFacts
from pytest_cannlm.lint.finding import Problem, RuleBook
from pytest_cannlm.lint.schema import CONTEXT_DEFAULTS

BOOK = RuleBook()


@BOOK.rule("PKG070", "warning", "no callback per token")
def callback_frequency(facts: PackageFacts) -> Iterator[Problem]:
    """With callback_freq 0 the engine reports nothing until the end: no streaming and no time per token."""
    if facts.setting("generate_options", "callback_freq", int, file=CONTEXT) == 0:
        yield Problem(CONTEXT, "generate_options.callback_freq", "0", "1", "Write 1")


@BOOK.rule("PKG071", "error", "sampling at temperature 0")
def temperature(facts: PackageFacts) -> Iterator[Problem]:
    """The engine's interface does not allow 0; for the likeliest token every time, do_sample is false."""
    samples = facts.setting("sampler", "do_sample", bool, file=CONTEXT)
    heat = facts.setting("sampler", "temperature", object, file=CONTEXT)
    if samples and heat == 0:
        fix = "Write do_sample false, or a temperature such as 0.7"
        yield Problem(CONTEXT, "sampler.temperature", "0 with do_sample", "a number above 0", fix)


@BOOK.rule("PKG072", "warning", "a penalty or share of 0")
def zero_factors(facts: PackageFacts) -> Iterator[Problem]:
    """A repetition penalty of 1 and a top-p of 1 have no effect; 0 is the other extreme, and leaves no sense."""
    sampler = facts.context.get("sampler")
    for key in ("top-p", "repetition_penalty"):
        value = sampler.get(key) if isinstance(sampler, Mapping) else None
        if value == 0 and not isinstance(value, bool):
            yield Problem(CONTEXT, f"sampler.{key}", "0", "a number above 0", "Write 1 for no effect")


@BOOK.rule("PKG073", "note", "a default applies")
def defaults(facts: PackageFacts) -> Iterator[Problem]:
    """The engine does not say which settings it lacks; its defaults differ from what sample packages write."""
    for field, default in CONTEXT_DEFAULTS.items():
        section, _, key = field.partition(".")
        inner = facts.context.get(section)
        if isinstance(inner, Mapping) and key not in inner:
            yield Problem(CONTEXT, field, f"nothing, so {default}", "the value that is meant", "Write it down")


@BOOK.rule("PKG074", "note", "no stop sequence")
def no_stop(facts: PackageFacts) -> Iterator[Problem]:
    """The answer then ends by eos_token_id alone, and models with several end tokens run on past the others."""
    options = facts.context.get("generate_options")
    if isinstance(options, Mapping) and not options.get("stop_sequence"):
        fix = "Name the texts of all end tokens"
        yield Problem(CONTEXT, "generate_options.stop_sequence", "nothing", "at least one text", fix)
