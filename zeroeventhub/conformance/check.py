"""A check: what it asks for, how it ends, and the registry that all checks are in."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from zeroeventhub.conformance.answer import Answer
    from zeroeventhub.conformance.subject import Subject

__all__ = [
    "Check",
    "Finding",
    "Outcome",
    "Result",
    "all_checks",
    "check",
    "fail",
    "note",
    "register",
    "run_check",
    "skip",
]

V1_SECTION = "12"


class Outcome(StrEnum):
    """Name how a check ended."""

    PASS = "pass"  # noqa: S105 - not a password
    NOTE = "note"
    FAIL = "fail"
    SKIP = "skip"


class Finding(Exception):  # noqa: N818 - leaves a check early, with what it found
    """Leave a check with what it found.

    Args:
        outcome: how the check ends.
        reason: one sentence.
        answer: the answer that shows it; of a failure, the last answer if None.
        fault: what the failures of one fault have in common; the reason, if empty.
    """

    def __init__(
        self, outcome: Outcome, reason: str, answer: "Answer | None" = None, fault: str = ""
    ) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason
        self.answer = answer
        self.fault = fault or reason


def fail(reason: str, answer: "Answer | None" = None) -> NoReturn:
    """End a check: the publisher does what the protocol forbids, as the last answer shows."""
    raise Finding(Outcome.FAIL, reason, answer)


def note(reason: str, answer: "Answer | None" = None) -> NoReturn:
    """End a check: it is allowed, but there are consumers that stumble over it."""
    raise Finding(Outcome.NOTE, reason, answer)


def skip(reason: str, answer: "Answer | None" = None) -> NoReturn:
    """End a check: it cannot be made on this feed as it is now."""
    raise Finding(Outcome.SKIP, reason, answer)


@dataclass(frozen=True)
class Result:
    """Hold how one check ended.

    Attributes:
        name: the check's name.
        section: the section of the specification that it stands on.
        sentence: what the specification asks for.
        outcome: how it ended.
        reason: what was found; empty where the check passed.
        answer: the answer that shows it, where there is one.
        seconds: how long the check took.
        fault: what it has in common with other results of the same fault; empty where it passed.
    """

    name: str
    section: str
    sentence: str
    outcome: Outcome
    reason: str = ""
    answer: "Answer | None" = None
    seconds: float = 0.0
    fault: str = ""


Run = Callable[["Subject"], None]


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


_CHECKS: dict[str, Check] = {}


def register(
    section: str,
    name: str,
    sentence: str,
    run: Run,
    *,
    extension: str | None = None,
    v1: bool = False,
    v2: bool = True,
) -> None:
    """Register a check.

    Args:
        section: the section of the specification.
        name: the check's name.
        sentence: what the specification asks for.
        run: the function that makes it.
        extension: the extension that the feed has to list for it.
        v1: whether it is made in the words of ZeroEventHub v1, with "v1-" before its name.
        v2: whether it is made in the words of FeedAPI v2.
    """
    if v2:
        _CHECKS[name] = Check(name, section, sentence, run, extension)
    if v1:
        _CHECKS[f"v1-{name}"] = Check(f"v1-{name}", V1_SECTION, sentence, run, v1=True)


def check(
    section: str, sentence: str, *, needs: int | None = None, **options: Any
) -> Callable[[Callable[..., None]], None]:
    """Register a function as the check of its name, with hyphens for underscores.

    Args:
        section: the section of the specification.
        sentence: what the specification asks for.
        needs: how many events the check needs; it is called with the partition that has the most
            and with what came from there, or skipped. None if it needs no partition.
        options: as in register.
    """

    def register_function(make: Callable[..., None]) -> None:
        def run(subject: "Subject") -> None:
            make(subject, *(() if needs is None else subject.sample(needs)))

        name = make.__name__.rstrip("_").replace("_", "-")
        register(section, name, sentence, run, **options)

    return register_function


def all_checks() -> dict[str, Check]:
    """Return all checks by name: those of FeedAPI v2 first."""
    return dict(sorted(_CHECKS.items(), key=lambda item: item[1].v1))


def run_check(chosen: Check, subject: "Subject") -> Result:
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
