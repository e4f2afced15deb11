"""PKG080 to PKG088: the compiled model and its external weight file."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cannlm.compat.origin import build_version, chip_claims, read_attributes
from pytest_cannlm.container.core import open_container
from pytest_cannlm.container.kirin import SIMULATED_ATTR
from pytest_cannlm.container.layout import EXTERNAL_WEIGHT_FILE, KIRIN_COMPILED, RUNTIME_GRAPH
from pytest_cannlm.errors import ContainerError
from pytest_cannlm.lint.facts import PackageFacts
from pytest_cannlm.lint.finding import READS_MODEL, CannotLook, Problem, RuleBook

BOOK = RuleBook()

_MODELS = (".omc", ".om")


@BOOK.rule(READS_MODEL, "error", "the compiled model is damaged")
def container(facts: PackageFacts) -> Iterator[Problem]:
    """Loaders check magic, lengths and tables first; a file that was cut or changed on its way is refused or
    crashes.
    """
    described = facts.described
    if described["error"] is not None:
        found = f"{described['message']} ({described['error']})"
        if "found" in described:
            found += f": {described['found']}"
        expected = str(described.get("expected", "a sound container"))
        fix = "Copy the file again, or convert the model again"
        yield Problem(facts.model_path.name, described.get("field"), found, expected, fix)


@BOOK.rule("PKG081", "error", "two models share one weight file")
def shared_weights(facts: PackageFacts) -> Iterator[Problem]:
    """External weights have the fixed name SubGraph_0.weight: in one folder they belong to one model only."""
    others = [entry.name for entry in facts.entries if _is_other_model(facts, entry.name)]
    if not facts.container.external_weights:
        return
    for name in others:
        try:
            needs = open_container(facts.path(name)).external_weights
        except (ContainerError, CannotLook):
            continue
        if needs:
            yield Problem(name, None, "a second model with weights outside", "one", "Give every model its own folder")


@BOOK.rule("PKG082", "warning", "a second model in the folder")
def second_model(facts: PackageFacts) -> Iterator[Problem]:
    """The engine loads the one that executor.json names; the other costs space and invites mix-ups."""
    for entry in facts.entries:
        if _is_other_model(facts, entry.name):
            expected = f"only {facts.model_path.name}"
            yield Problem(entry.name, None, "a model that executor.json does not name", expected, "Move it elsewhere")


@BOOK.rule("PKG083", "note", "runs on the simulator only")
def simulated(facts: PackageFacts) -> Iterator[Problem]:
    """The simulated converter made this model; a real NPU refuses it, and its times are modelled."""
    if facts.container.simulated:
        fix = "Build with a real converter for a device"
        yield Problem(facts.model_path.name, "userdefineinfo", "the simulator's mark", "none, for a device", fix)


@BOOK.rule("PKG084", "error", "a simulated model without its mark")
def mark(facts: PackageFacts) -> Iterator[Problem]:
    """What the simulated converter made must say so, or it is offered to a real NPU."""
    model = facts.container
    attribute = bool(model.attributes((SIMULATED_ATTR,)).get(SIMULATED_ATTR))
    graph = model.find(RUNTIME_GRAPH) is not None
    if not model.simulated == attribute == graph:
        signs = {"mark in the header": model.simulated, f"attribute {SIMULATED_ATTR}": attribute, "its graph": graph}
        found = ", ".join(f"{name}: {'yes' if there else 'no'}" for name, there in signs.items())
        yield Problem(facts.model_path.name, None, found, "all or none of them", "Build the package again")


@BOOK.rule("PKG085", "note", "the model does not name its chip or version")
def origin(facts: PackageFacts) -> Iterator[Problem]:
    """Whether it fits a device can then not be told before it is loaded; a manifest beside the package helps."""
    model = facts.container
    attributes = read_attributes(model)
    platform = model.kirin_platform()
    unnamed = f"platform code {platform[0]}, a code without a known name" if platform else "no chip"
    said = ((unnamed, chip_claims(model, attributes)), ("no CANN version", build_version(attributes)))
    missing = [words for words, there in said if not there]
    if missing and facts.manifest_path is None:
        fix = "Keep a manifest with both, or note them where the package is kept"
        yield Problem(facts.model_path.name, None, " and ".join(missing), "both", fix)


@BOOK.rule("PKG086", "error", "a model for other hardware")
def dialect(facts: PackageFacts) -> Iterator[Problem]:
    """The LM Engine loads models for Kirin NPUs; an Ascend model has the same magic and another layout."""
    if facts.container.dialect != "kirin":
        found = f"a model for {facts.container.dialect.capitalize()}"
        yield Problem(facts.model_path.name, None, found, "a model for Kirin", "Convert it with omg, or atc for mobile")


@BOOK.rule("PKG087", "warning", "the model is not compiled")
def compiled(facts: PackageFacts) -> Iterator[Problem]:
    """A graph of this kind is compiled on the device at every load; language models ship compiled (.omc)."""
    model = facts.container
    if model.dialect == "kirin" and model.header.modeltype != KIRIN_COMPILED:
        found = model.model_type_name or f"model type {model.header.modeltype}"
        yield Problem(facts.model_path.name, "modeltype", found, "a compiled model", "Convert it with --target=omc")


@BOOK.rule("PKG088", "error", "the weight file has another size")
def weight_size(facts: PackageFacts) -> Iterator[Problem]:
    """The engine refuses a weight file that is shorter than the graph asks for, and a longer one is another model's."""
    if not facts.container.external_weights:
        return
    expected = facts.container.external_weight_size()
    if expected is None:
        raise CannotLook(f"{facts.model_path.name} does not say how large its weights are")
    size = facts.weight_file.stat().st_size
    if size != expected:
        wanted = f"{expected} bytes, as graphop_weight_size of {facts.model_path.name}"
        yield Problem(EXTERNAL_WEIGHT_FILE, None, f"{size} bytes", wanted, "Copy the file again, or build again")


def _is_other_model(facts: PackageFacts, name: str) -> bool:
    return name.endswith(_MODELS) and name != facts.model_path.name
