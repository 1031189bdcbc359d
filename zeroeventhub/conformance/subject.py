"""The feed that is being checked: what it says of itself, and how its pages are asked for."""

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from zeroeventhub.conformance.answer import Answer, PageText, Parameters, Probe, SentEvent
from zeroeventhub.conformance.finding import Finding, Outcome, fail, skip
from zeroeventhub.conformance.walk import HINT, Walk, walk
from zeroeventhub.protocol import FIRST

__all__ = ["Subject"]

MOST_PARTITIONS = 4
"""How many partitions are read; what goes for them goes for the rest."""

MOST_TO_HEAD = 20
_ID = re.compile("[0-9]{1,5}")
CONFLICT = 409


class Subject:
    """Know a feed in one of the protocol's versions.

    Args:
        probe: what sends the requests.
        ids: the ids of the partitions, for a feed that is asked in the words of ZeroEventHub v1;
            None for FeedAPI v2.
    """

    def __init__(self, probe: Probe, ids: Sequence[int] | None = None) -> None:
        self.probe = probe
        self._ids = None if ids is None else list(ids)
        self.pages: list[tuple[Answer, PageText]] = []
        self._discovery: Answer | None = None
        self._walks: dict[int, Walk] = {}

    @property
    def v1(self) -> bool:
        """Whether the feed is asked in the words of ZeroEventHub v1."""
        return self._ids is not None

    # What the feed says of itself.

    def discovery(self, *, again: bool = False) -> Answer:
        """Return the answer to discovery, asked once unless asked for again."""
        if self._discovery is None or again:
            self._discovery = self.probe.ask()
        return self._discovery

    def document(self) -> dict[str, Any]:
        """Return the discovery document; without one there is nothing to check here."""
        answer = self.discovery()
        try:
            document = msgspec.json.decode(answer.body) if answer.ok else None
        except (msgspec.DecodeError, RecursionError):
            document = None
        if not isinstance(document, dict):
            skip("The feed has no discovery document.", answer)
        return document

    @property
    def token(self) -> str:
        """The token that discovery gave."""
        token = self.document().get("token")
        return token if isinstance(token, str) else str(msgspec.json.encode(token), "utf-8")

    @property
    def extensions(self) -> frozenset[str]:
        """The extensions that the feed lists."""
        if self.v1:
            return frozenset()
        listed = self.document().get("extensions")
        names = listed if isinstance(listed, list) else []
        return frozenset(name for name in names if isinstance(name, str))

    def entries(self) -> list[dict[str, Any]]:
        """Return what discovery says of those partitions that have an id."""
        listed = self.document().get("partitions")
        return [
            entry
            for entry in (listed if isinstance(listed, list) else [])
            if isinstance(entry, dict) and _ID.fullmatch(str(entry.get("id")))
        ]

    def partitions(self) -> list[int]:
        """Return the ids of the feed's partitions."""
        if self._ids is not None:
            return list(self._ids)
        found = [int(str(entry["id"])) for entry in self.entries()]
        if not found:
            skip("The feed lists no partition.", self.discovery())
        return found

    # Asking for pages.

    def parameters(self, partition: int | str, cursor: str | bytes) -> list[tuple[str, Any]]:
        """Return the parameters that every request for a page has."""
        if self._ids is not None:
            return [("n", str(len(self._ids))), (f"cursor{partition}", cursor)]
        return [("token", self.token), ("partition", str(partition)), ("cursor", cursor)]

    def send(self, parameters: Parameters, **options: Any) -> Answer:
        """Ask for a page with exactly these parameters."""
        return self.probe.ask("" if self.v1 else "/events", parameters, **options)

    def ask(self, partition: int, cursor: str, extra: Parameters = (), **options: Any) -> Answer:
        """Ask for a page, with a new token if the one in hand is out of date."""
        answer = self.send([*self.parameters(partition, cursor), *extra], **options)
        if answer.status == CONFLICT and not self.v1:
            self.discovery(again=True)
            answer = self.send([*self.parameters(partition, cursor), *extra], **options)
        return answer

    def page(self, partition: int, cursor: str, extra: Parameters = (), **options: Any) -> PageText:
        """Ask for a page, which has to be one: 200 and a checkpoint."""
        answer = self.ask(partition, cursor, extra, **options)
        return self.understand(answer, partition)

    def understand(self, answer: Answer, partition: int) -> PageText:
        """Read an answer that has to be a page."""
        if not answer.ok:
            fail(f"A page was asked for, and status {answer.status} came.", answer)
        page = PageText.of(answer.body, partition if self.v1 else None)
        self.pages.append((answer, page))
        if "json" in page.faults or "deep" in page.faults:
            fail(f"The page cannot be read: {page.faults.get('json', 'too deep')}.", answer)
        if not page.marks:
            fail("The page has no checkpoint, so a consumer reads it again forever.", answer)
        return page

    # What is read once, and compared with afterwards.

    def walk(self, partition: int) -> Walk:
        """Read a partition from its start, as far as the checks need; once."""
        if partition not in self._walks:

            def read(cursor: str) -> tuple[Answer, PageText]:
                page = self.page(partition, cursor, [("pagesizehint", str(HINT))])
                return self.pages[-1][0], page

            self._walks[partition] = walk(read)
        return self._walks[partition]

    def sample(self, least: int = 0) -> tuple[int, Walk]:
        """Return the partition with the most events, and these; skip if there are too few.

        Args:
            least: how many events the check needs.
        """
        known = self.partitions()[:MOST_PARTITIONS]
        best = max(known, key=lambda partition: len(self.walk(partition).events))
        found = self.walk(best)
        if found.broken is not None and not found.marks:
            reason = f"The feed cannot be read from its start. {found.broken.reason}"
            skip(reason, found.broken.answer)
        if len(found.events) < least:
            skip(f"It takes a partition with {least} events or more to see.")
        return best, found

    def read(
        self, partition: int, cursor: str, count: int, extra: Parameters = ()
    ) -> list[SentEvent]:
        """Read at least so many events that follow a cursor, or up to the head."""
        events: list[SentEvent] = []
        empty = 0
        for _ in range(count + MOST_TO_HEAD):
            page = self.page(partition, cursor, extra)
            events += page.settled
            empty = 0 if page.settled else empty + 1
            done = page.marks[-1].stop_reached is True
            if len(events) >= count or done or (empty and page.cursor == cursor) or empty > 3:  # noqa: PLR2004
                break
            cursor = page.cursor
        return events

    def head(self, partition: int, *, strict: bool = False) -> tuple[str, Answer]:
        """Return a cursor at the head, and the empty page that it gave; skip if it runs away.

        Args:
            partition: the partition's id.
            strict: whether a page that cannot be read fails the check; else it is skipped.
        """
        try:
            return self._head(partition)
        except Finding as finding:
            if strict:
                raise
            skip(f"The head cannot be read. {finding.reason}", finding.answer)

    def _head(self, partition: int) -> tuple[str, Answer]:
        known = self.walk(partition)
        cursor = known.marks[-1].cursor if known.marks else FIRST
        for _ in range(MOST_TO_HEAD):
            page = self.page(partition, cursor)
            answer = self.pages[-1][0]
            if not page.events:
                return page.cursor, answer
            cursor = page.cursor
        reason = "The head was not reached: there are too many events, or they come too fast."
        raise Finding(Outcome.SKIP, reason)

    def expect_same(
        self, expected: Sequence[SentEvent], events: Sequence[SentEvent], what: str
    ) -> None:
        """Fail unless one sequence of events starts like the other."""
        for number, (left, right) in enumerate(zip(expected, events, strict=False), 1):
            if left.identity != right.identity:
                fail(f"Event {number} {what}: {_short(left)} became {_short(right)}.", self._last())
        if len(events) < len(expected):
            fail(
                f"Only {len(events)} of {len(expected)} events came {what}.",
                self._last(),
            )

    def _last(self) -> Answer | None:
        return self.pages[-1][0] if self.pages else None


def _short(event: SentEvent) -> str:
    text = json.dumps(event.data, default=str)
    return text if len(text) < 60 else text[:60] + "…"  # noqa: PLR2004 - what a line holds
