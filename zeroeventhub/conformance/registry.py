"""All checks by name, and how they are run."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from zeroeventhub.conformance.finding import Finding, Outcome, Result, skip
from zeroeventhub.conformance.subject import Subject

__all__ = ["Check", "all_checks", "check", "run_check"]

Run = Callable[[Subject], None]

_CHECKS: dict[str, "Check"] = {}

# Those that look at everything that came are the last.
_ORDER = (
    *("discovery", "token", "reading", "v1", "parameters"),
    *("event_types", "caught_up", "stop", "wait", "cursor_of_time", "splits"),
    *("caching", "lines", "problems"),
)


@dataclass(frozen=True)
class Check:
    """Hold one check.

    Attributes:
        name: what `--only` calls it.
        section: the section of the specification.
        sentence: what the specification asks for.
        run: the function that makes it; leaves by a Finding, or passes.
        extension: the extension that the feed has to list for it.
        v1: whether it is made in the words of v1.
    """

    name: str
    section: str
    sentence: str
    run: Run
    extension: str | None = None
    v1: bool = False


def check(
    name: str,
    section: str,
    sentence: str,
    *,
    extension: str | None = None,
    v2: bool = True,
    v1: str | None = None,
) -> Callable[[Run], Run]:
    """Put a function on the list of checks.

    Args:
        name: the check's name.
        section: the section of the specification.
        sentence: what the specification asks for.
        extension: the extension that the feed has to list for it.
        v2: whether it is made in the words of FeedAPI v2.
        v1: the section to stand on when it is made in the words of v1, with "v1-" before
            its name; None if it is not made there.
    """

    def register(run: Run) -> Run:
        if v2:
            _CHECKS[name] = Check(name, section, sentence, run, extension)
        if v1 is not None:
            _CHECKS[f"v1-{name}"] = Check(f"v1-{name}", v1, sentence, run, None, v1=True)
        return run

    return register


def all_checks() -> dict[str, Check]:
    """Return all checks by name: those of FeedAPI v2 first."""
    # Whoever imports a module of checks puts them on the list.
    from zeroeventhub.conformance import checks  # noqa: F401, PLC0415

    def place(item: tuple[str, Check]) -> tuple[bool, int]:
        module = item[1].run.__module__.rpartition(".")[2]
        return item[1].v1, _ORDER.index(module)

    return dict(sorted(_CHECKS.items(), key=place))


def run_check(chosen: Check, subject: Subject) -> Result:
    """Make one check of a feed."""
    began = time.monotonic()
    outcome, reason, answer = Outcome.PASS, "", None
    try:
        if chosen.extension and chosen.extension not in subject.extensions:
            skip(f"The feed does not list the extension {chosen.extension}.")
        chosen.run(subject)
    except Finding as finding:
        outcome, reason, answer = finding.outcome, finding.reason, finding.answer
        if outcome is Outcome.FAIL and answer is None:
            answer = subject.probe.last
    seconds = time.monotonic() - began
    return Result(chosen.name, chosen.section, chosen.sentence, outcome, reason, answer, seconds)
