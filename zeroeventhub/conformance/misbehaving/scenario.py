"""A scenario: what is answered, and what a right consumer has applied at the end."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zeroeventhub.conformance.misbehaving.reply import Reply

__all__ = ["Request", "Run", "Scenario", "add", "at_offset", "listed", "text"]


@dataclass(frozen=True)
class Request:
    """Hold a request to a scenario.

    Attributes:
        path: what follows the scenario's own path, such as "/events".
        query: its parameters; of each the first value.
        headers: its headers, by names in lower case.
        origin: where the publisher listens, such as "http://127.0.0.1:8080".
    """

    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    origin: str


@dataclass
class Run:
    """Hold what one client was told so far.

    Attributes:
        asked: by question, how often it was asked.
        faults: what the client must not do and did.
    """

    asked: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Scenario:
    """Hold one way to misbehave.

    Attributes:
        name: its name, which is its path.
        section: the section of the specification that says what a client does.
        sentence: what is done to the client.
        right: what a right client does.
        answer: answers a request.
        applied: JSON texts of the events that a right consumer has applied at the end: by
            partition, in order.
        error: the kind of error that the consumer ends with; None if it reaches the head.
        may_fail: whether a right client may end in an error in place of the head, with the
            start of these events applied.
        sequence: partitions in the order in which they have to be applied.
        v1: the number of partitions, for a feed of ZeroEventHub v1.
        sizes: for how many offsets the scenario is there, as name-0, name-1, and so on.
    """

    name: str
    section: str
    sentence: str
    right: str
    answer: Callable[[Request, Run], Reply]
    applied: Mapping[int, Sequence[str]]
    error: str | None = None
    may_fail: bool = False
    sequence: tuple[int, ...] = ()
    v1: int | None = None
    sizes: int | None = None

    def document(self) -> dict[str, Any]:
        """Describe the scenario as JSON."""
        texts = {str(number): list(events) for number, events in self.applied.items()}
        return {
            "name": self.name,
            "section": self.section,
            "sentence": self.sentence,
            "right": self.right,
            "applied": texts,
            "error": self.error,
            "mayFail": self.may_fail,
            "sequence": list(self.sequence),
            "v1Partitions": self.v1,
            "offsets": self.sizes,
        }


_SCENARIOS: dict[str, Scenario] = {}
_MAKERS: dict[str, Callable[[int], Scenario]] = {}


def add(scenario: Scenario, maker: Callable[[int], Scenario] | None = None) -> None:
    """Put a scenario on the list; one that has offsets with what makes it for each."""
    _SCENARIOS[scenario.name] = scenario
    if maker is not None:
        _MAKERS[scenario.name] = maker


def listed() -> dict[str, Scenario]:
    """Return the scenarios that have been put on the list so far, by name."""
    return dict(_SCENARIOS)


def at_offset(family: str, offset: int) -> Scenario:
    """Return one of a family of scenarios."""
    return _MAKERS[family](offset)


def text(data: Any) -> str:
    """Write an event's data as JSON, in one line, with all of Unicode as it is."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))
