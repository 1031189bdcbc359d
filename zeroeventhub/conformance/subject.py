"""The feed under test: requests to it, and what the checks know of it."""

import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import msgspec

from zeroeventhub.client.redaction import feed_url, without_secrets
from zeroeventhub.conformance.answer import (
    Answer,
    Checkpoint,
    Finding,
    Outcome,
    PageText,
    SentEvent,
    fail,
    skip,
)
from zeroeventhub.errors import ProtocolError, printable
from zeroeventhub.extensions import CAUGHT_UP, EXTENSIONS, PARTITION
from zeroeventhub.protocol import FIRST
from zeroeventhub.wire.documents import decode_answer
from zeroeventhub.wire.problem import seconds_in

Parameters = Sequence[tuple[str, str | bytes]]

BAD_REQUEST = 400
CONFLICT = 409
_LATER = {429, 503}

TIMEOUT = 20.0
LARGEST_BODY = 64 * 2**20
LONGEST_RETRY = 5.0
TRIES = 3
_OVER = "The time for all checks is over."

HINT = 25
"""A page size that makes several pages of a small feed."""

MOST_PARTITIONS = 4
"""The most partitions that the checks read."""

MOST_PAGES = 40
MOST_BOUNDED_PAGES = 400
MOST_EVENTS = 3_000
MOST_EMPTY = 3
MOST_TO_HEAD = 20
LONGEST_WALK = 8.0
_ID = re.compile("[0-9]{1,5}")
_SHOWN = 60


def expect(answer: Answer, what: str, *statuses: int) -> Answer:
    """Return an answer; fail if it has another status than expected, which is 200 by default."""
    if answer.status not in (statuses or (200,)):
        extra = " and an empty body" if answer.ok and not answer.body else ""
        fail(f"{what} was answered with status {answer.status}{extra}.", answer)
    return answer


def decode(answer: Answer, name: str, what: str, status: int = 200) -> Any:
    """Return what an answer of an extension says; fail if it has another status or form."""
    expect(answer, what, status)
    if answer.media_type != "application/json":
        fail(f"{what} was answered with {answer.media_type}.", answer)
    try:
        return decode_answer(EXTENSIONS[name], answer.body)
    except ProtocolError as error:
        fail(str(error), answer)


class Probe:
    """Send requests below a feed's address; refuse one that is not a URL of HTTP."""

    def __init__(self, url: str, http: httpx.Client) -> None:
        self._url = feed_url(url)
        self._http = http
        self.address = without_secrets(self._url)
        self.end = math.inf  # of the time for all checks, on the monotonic clock
        self.last: Answer | None = None
        self.refusals: list[Answer] = []  # all answers of status 400 and above

    def ask(
        self,
        suffix: str = "",
        parameters: Parameters = (),
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> Answer:
        """Send a request below the feed's path, and return the whole answer, or fail.

        The request is repeated after 429 and 503. Values in bytes are percent-encoded as they are.
        """
        for attempt in range(1, TRIES + 1):
            answer = self._send(suffix, parameters, method, headers or {}, content)
            if answer.status not in _LATER or attempt == TRIES:
                break
            wanted = seconds_in(answer.headers.get("retry-after", ""))
            time.sleep(min(1.0 if wanted is None else wanted, LONGEST_RETRY))
        self.last = answer
        if answer.status >= BAD_REQUEST:
            self.refusals.append(answer)
        return answer

    def _send(
        self,
        suffix: str,
        parameters: Parameters,
        method: str,
        headers: Mapping[str, str],
        content: bytes | None,
    ) -> Answer:
        path, _, own = self._url.raw_path.partition(b"?")
        query = urlencode(parameters, quote_via=quote, safe=":;").encode()
        path = (path.rstrip(b"/") if suffix else path) + suffix.encode()
        url = self._url.copy_with(raw_path=b"?".join((path, b"&".join(filter(None, (own, query))))))
        shown = path.decode("ascii") + ("?" if own or query else "") + ("…&" if own else "")
        answer = Answer(method, shown + query.decode())
        began = time.monotonic()
        timeout = min(TIMEOUT, self.end - began)
        if timeout <= 0:
            skip(_OVER, answer)
        sent = {"Accept-Encoding": "identity", **headers}
        body = bytearray()
        try:
            with self._http.stream(
                method, url, headers=sent, content=content, follow_redirects=False, timeout=timeout
            ) as response:
                answer = replace(answer, status=response.status_code, headers=response.headers)
                for chunk in response.iter_raw():
                    body += chunk
                    if len(body) > LARGEST_BODY or time.monotonic() - began > timeout:
                        reason = f"The answer did not end within {timeout:g} s and 64 MiB."
                        raise Finding(Outcome.FAIL, reason, answer, fault="no whole answer")
        except httpx.RequestError as error:
            if time.monotonic() >= self.end:
                skip(_OVER, answer)
            # The exception's own text may hold the URL with its secrets.
            reason = f"There was no whole answer: {type(error).__name__}."
            raise Finding(Outcome.FAIL, reason, answer, fault="no whole answer") from None
        return replace(answer, body=bytes(body), seconds=time.monotonic() - began)


@dataclass
class Walk:
    """Hold the events and pages of a partition, read from its start."""

    events: list[SentEvent] = field(default_factory=list)  # up to the last checkpoint
    checkpoints: list[Checkpoint] = field(default_factory=list)  # counting events from the start
    pages: list[tuple[Answer, PageText]] = field(default_factory=list)
    at_head: bool = False  # whether the walk reached the head
    broken: Finding | None = None  # what ended the walk

    @property
    def inner(self) -> list[Checkpoint]:
        """The checkpoints with events before and after them."""
        return [one for one in self.checkpoints if 0 < one.count < len(self.events)]

    def need_inner(self) -> list[Checkpoint]:
        """Return the checkpoints with events before and after them; skip if there is none."""
        return self.inner or skip("There is no checkpoint with events before and after it.")


class Subject:
    """Read a feed in ZeroEventHub v1, if the ids of its partitions are given, or in FeedAPI v2."""

    def __init__(self, probe: Probe, ids: Sequence[int] | None = None) -> None:
        self.probe = probe
        self._ids = None if ids is None else list(ids)
        self.pages: list[tuple[Answer, PageText]] = []  # all that came
        self._discovery: Answer | None = None
        self._walks: dict[int, Walk] = {}

    @property
    def v1(self) -> bool:
        """Whether the requests are those of ZeroEventHub v1."""
        return self._ids is not None

    # Discovery.

    def discovery(self, *, again: bool = False) -> Answer:
        """Return the answer to discovery; send the request once, unless `again`."""
        if self._discovery is None or again:
            self._discovery = self.probe.ask()
        return self._discovery

    def document(self) -> dict[str, Any]:
        """Return the discovery document; skip the check without one."""
        answer = self.discovery()
        document = answer.document
        if not answer.ok or not isinstance(document, dict):
            skip("The feed has no discovery document.", answer)
        return document

    @property
    def token(self) -> str:
        """The token of the discovery document."""
        token = self.document().get("token")
        return token if isinstance(token, str) else str(msgspec.json.encode(token), "utf-8")

    @property
    def extensions(self) -> frozenset[str]:
        """The extensions that the feed lists."""
        listed = None if self.v1 else self.document().get("extensions")
        names = listed if isinstance(listed, list) else []
        return frozenset(name for name in names if isinstance(name, str))

    def entries(self) -> list[dict[str, Any]]:
        """Return the partitions of the discovery document that have an id."""
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
        return found or skip("The feed lists no partition.", self.discovery())

    # Requests for pages, and to extensions.

    def place(self, partition: int | str | None = None) -> list[tuple[str, Any]]:
        """Return the parameters token and partition; by default, of the first partition."""
        chosen = self.partitions()[0] if partition is None else partition
        return [("token", self.token), ("partition", str(chosen))]

    def parameters(
        self, partition: int | str | None = None, cursor: str | bytes = FIRST
    ) -> list[tuple[str, Any]]:
        """Return the required parameters of a page; by default, of the first page."""
        if self._ids is None:
            return [*self.place(partition), ("cursor", cursor)]
        number = self._ids[0] if partition is None else partition
        return [("n", str(len(self._ids))), (f"cursor{number}", cursor)]

    def send(self, parameters: Parameters, **options: Any) -> Answer:
        """Ask for a page with exactly these parameters."""
        return self.probe.ask("" if self.v1 else "/events", parameters, **options)

    def ask(self, partition: int, cursor: str, extra: Parameters = (), **options: Any) -> Answer:
        """Ask for a page, with a new token if the known one is out of date."""
        answer = self.send([*self.parameters(partition, cursor), *extra], **options)
        if answer.status == CONFLICT and not self.v1:
            self.discovery(again=True)
            answer = self.send([*self.parameters(partition, cursor), *extra], **options)
        return answer

    def page(self, partition: int, cursor: str, extra: Parameters = ()) -> PageText:
        """Ask for a page; fail unless it has status 200 and a checkpoint."""
        return self.understand(self.ask(partition, cursor, extra), partition)

    def follow(
        self, partition: int, cursor: str, extra: Parameters = ()
    ) -> Iterator[tuple[PageText, int]]:
        """Follow the cursors, up to an empty page with the requested cursor.

        Yield each page, and the number of empty pages in a row up to this one.
        """
        empty = 0
        while True:
            page = self.page(partition, cursor, extra)
            empty = 0 if page.settled else empty + 1
            yield page, empty
            if empty and page.cursor == cursor:
                return
            cursor = page.cursor

    def understand(self, answer: Answer, partition: int) -> PageText:
        """Decode a page; fail if the answer is none."""
        if not answer.ok:
            fail(f"A page was asked for, and status {answer.status} came.", answer)
        page = PageText.of(answer.body, partition, v1=self.v1)
        self.pages.append((answer, page))
        if "json" in page.faults or "deep" in page.faults:
            fail(f"The page cannot be read: {page.faults.get('json', 'too deep')}.", answer)
        if not page.checkpoints:
            fail("The page has no checkpoint, so a consumer reads it again forever.", answer)
        return page

    def get(self, name: str, partition: int | None, **given: str | None) -> Any:
        """Send a request to an extension with these parameters; return its decoded answer."""
        extension = EXTENSIONS[name]
        place = self.place(partition) if PARTITION in extension.parameters else []
        parameters = [(key, value) for key, value in given.items() if value is not None]
        answer = self.probe.ask(f"/{extension.path}", [*place, *parameters])
        return decode(answer, name, f"A request for {name}")

    # Events that checks compare.

    @property
    def _most_empty(self) -> float:
        """How many empty pages in a row are taken for the head."""
        # Pages are empty also where a publisher looks through events of other partitions.
        return math.inf if CAUGHT_UP in self.extensions else MOST_EMPTY

    def walk(self, partition: int) -> Walk:
        """Read a partition from its start, as far as the checks need it; once."""
        if partition not in self._walks:
            seen = self._walks[partition] = Walk()
            try:
                self._walk(partition, seen)
            except Finding as finding:
                seen.broken = finding
        return self._walks[partition]

    def _walk(self, partition: int, seen: Walk) -> None:
        end = time.monotonic() + LONGEST_WALK
        before = [FIRST]
        for page, empty in self.follow(partition, FIRST, [("pagesizehint", str(HINT))]):
            seen.pages.append(self.pages[-1])
            count = len(seen.events)
            seen.events += page.settled
            seen.checkpoints += [replace(one, count=count + one.count) for one in page.checkpoints]
            if page.settled and page.cursor in before:
                fail(
                    "A page with events gives a cursor that was given before: it goes in circles.",
                    self.pages[-1][0],
                )
            still = page.cursor == before[-1] or page.end.caught_up or empty >= self._most_empty
            seen.at_head = empty > 0 and still
            before.append(page.cursor)
            enough = len(seen.pages) >= MOST_PAGES or len(seen.events) >= MOST_EVENTS
            if seen.at_head or enough or time.monotonic() > end:
                return

    def sample(self, least: int = 0) -> tuple[int, Walk]:
        """Return the partition with the most events and its walk; skip if there are too few."""
        known = self.partitions()[:MOST_PARTITIONS]
        best = max(known, key=lambda partition: len(self.walk(partition).events))
        found = self.walk(best)
        if found.broken is not None and not found.checkpoints:
            reason = f"The feed cannot be read from its start. {found.broken.reason}"
            skip(reason, found.broken.answer)
        if len(found.events) < least:
            skip(f"It takes a partition with {least} events or more to see.")
        return best, found

    def read(
        self, partition: int, cursor: str, count: int, extra: Parameters = ()
    ) -> list[SentEvent]:
        """Read at least `count` events that follow a cursor, or up to the head."""
        events: list[SentEvent] = []
        for page, empty in islice(self.follow(partition, cursor, extra), MOST_BOUNDED_PAGES):
            events += page.settled
            if len(events) >= count or page.end.stop_reached or empty > self._most_empty:
                break
        return events

    def read_until(
        self, partition: int, start: str, stop: str, hint: int = HINT
    ) -> list[SentEvent]:
        """Read from a cursor until the publisher says that the stop is reached."""
        events: list[SentEvent] = []
        bounds = [("stop", stop), ("pagesizehint", str(hint))]
        for page, _ in islice(self.follow(partition, start, bounds), MOST_BOUNDED_PAGES):
            events += page.settled
            if page.end.stop_reached:
                if page.cursor != stop:
                    fail("The checkpoint that says stopReached is not the stop.")
                return events
        raise Finding(Outcome.FAIL, "The stop is never said to be reached.")

    def head(self, partition: int, *, strict: bool = False) -> tuple[str, Answer]:
        """Return a cursor at the head and its empty page; skip if the head is out of reach.

        A broken page skips the check as well, unless `strict`.
        """
        known = self.walk(partition)
        cursor = known.checkpoints[-1].cursor if known.checkpoints else FIRST
        try:
            for page, _ in islice(self.follow(partition, cursor), MOST_TO_HEAD):
                still = page.end.caught_up or page.cursor == cursor or self._most_empty < math.inf
                if not page.events and still:
                    return page.cursor, self.pages[-1][0]
                cursor = page.cursor
        except Finding as finding:
            if strict:
                raise
            skip(f"The head cannot be read. {finding.reason}", finding.answer)
        reason = "The head was not reached: there are too many events, or they come too fast."
        raise Finding(Outcome.SKIP, reason)

    def expect_same(
        self, expected: Sequence[SentEvent], events: Sequence[SentEvent], what: str
    ) -> None:
        """Fail unless the events begin with the expected ones."""
        for number, (left, right) in enumerate(zip(expected, events, strict=False), 1):
            if left.identity != right.identity:
                texts = (json.dumps(one.data, default=str) for one in (left, right))
                before, now = (printable(text, longest=_SHOWN) for text in texts)
                fail(f"Event {number} {what}: {before} became {now}.")
        if len(events) < len(expected):
            fail(f"Only {len(events)} of {len(expected)} events came {what}.")
