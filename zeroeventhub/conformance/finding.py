"""What a check finds: it passes, or it is left early with one of these in its place."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from zeroeventhub.conformance.answer import Answer

__all__ = ["Finding", "Outcome", "Result", "fail", "note", "skip"]


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
        answer: the answer that shows it.
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


def fail(reason: str, answer: "Answer | None" = None) -> NoReturn:
    """End a check: the publisher does what the protocol forbids."""
    raise Finding(Outcome.FAIL, reason, answer)


def note(reason: str, answer: "Answer | None" = None) -> NoReturn:
    """End a check: it is allowed, but there are consumers that stumble over it."""
    raise Finding(Outcome.NOTE, reason, answer)


def skip(reason: str, answer: "Answer | None" = None) -> NoReturn:
    """End a check: it cannot be made on this feed as it is now."""
    raise Finding(Outcome.SKIP, reason, answer)
