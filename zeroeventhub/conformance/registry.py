"""The list that checks put themselves on, and how one is run."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from zeroeventhub.conformance.finding import Finding, Outcome, Result, skip
from zeroeventhub.conformance.subject import Subject

__all__ = ["Check", "check", "listed", "run_check"]

Run = Callable[[Subject], None]

_CHECKS: dict[str, "Check"] = {}


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


def listed() -> dict[str, Check]:
    """Return the checks that have been put on the list so far, by name."""
    return dict(_CHECKS)


def run_check(chosen: Check, subject: Subject) -> Result:
    """Make one check of a feed."""
    began = time.monotonic()
    outcome, reason, answer, fault = Outcome.PASS, "", None, ""
    try:
        if chosen.extension and chosen.extension not in subject.extensions:
            skip(f"The feed does not list the extension {chosen.extension}.")
        chosen.run(subject)
    except Finding as finding:
        outcome, reason, answer = finding.outcome, finding.reason, finding.answer
        fault = finding.fault
        if outcome is Outcome.FAIL and answer is None:
            answer = subject.probe.last
    seconds = time.monotonic() - began
    return Result(
        chosen.name, chosen.section, chosen.sentence, outcome, reason, answer, seconds, fault
    )
