"""One explanation: what was found, what it means and what to do. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Explanation:
    """What one code or one kind of log line means. ``cause`` is None where no table knows it."""

    family: str | None
    """Whose code or text it is (a key of ``families`` in causes.json); None where nothing tells."""
    code: str | None = None
    """The code as it was found; None for a text without one."""
    name: str | None = None
    cause: str | None = None
    """One sentence without its full stop."""
    next: str | None = None
    """The next step, one sentence without its full stop; None where there is nothing to do."""
    place: str | None = None
    """What the code's own digits say: the caller's side, the device's resources, a user error, ..."""
    first: bool = False
    """Whether this is the first error of a log: the one that the others may follow from."""
    line: int | None = None
    """Number of the first line that says it, from 1; None outside of a log."""
    where: str | None = None
    """Where it stands in what is no log, such as the path of a value in a report."""
    times: int = 1
    """How many lines say it."""
    items: tuple[str, ...] = ()
    """What the lines name: the operators that a converter refused, for example."""
    lines: tuple[str, ...] = ()
    """The lines themselves, with those that continue them; long ones are cut, and of many the first are kept."""

    @property
    def known(self) -> bool:
        """Whether a table knows it."""
        return self.cause is not None

    @property
    def subject(self) -> str:
        """What is explained: code and name, or the line itself."""
        words = [word for word in (self.code, self.name) if word]
        return " ".join(words) or (self.lines[0] if self.lines else "")

    def sentence(self) -> str:
        """Code, name, family, cause, what is named, and the next step on one line."""
        where = ", ".join(word for word in (self.family, self.place) if word)
        head = self.subject + (f" ({where})" if where else "")
        if self.cause is None:
            return f"{head}: not known"
        named = f": {', '.join(self.items)}" if self.items else ""
        return f"{head}: {self.cause}{named}." + (f" {self.next}." if self.next else "")
