"""A feed on a raw socket, whose answers break at every byte, or at drawn ones."""

import gzip
import json
import random
import re
import threading
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from functools import partial
from itertools import islice
from socket import socket
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx
from anyio.from_thread import start_blocking_portal
from harness.calling import answer
from harness.faults.account import PATIENCE, Account, Findings, naming, until_done
from harness.faults.proxy import Fault, Plan, Sending, draw
from harness.web import listening, request_on

from zeroeventhub import FIRST, AsyncClient, Client, ConnectionPool, Page
from zeroeventhub.errors import CutPage, ProtocolError, Unreachable, ZeroEventHubError
from zeroeventhub.extensions import CAUGHT_UP
from zeroeventhub.protocol import FeedInfo
from zeroeventhub.wire.documents import encode_info

CHUNK = 23  # bytes of a chunk: few, so that lines and characters are spread over several
TEXTS = (
    "",
    "paid",
    "Zoë 漢字 😀",
    "line\u2028separator\u0085",
    '}\n{"cursor":"at-1"}\n',
    '{"data":{"n":1}}',
    "a longer text with nothing in it " * 3,
)


class History:
    """Hold the events of a partition, and before which of them a checkpoint may stand."""

    def __init__(self, texts: Iterable[str], checkpoints: Iterable[int], first: int = 0) -> None:
        self.events = tuple(
            json.dumps({"n": first + n, "text": text}, ensure_ascii=n % 2 == 0).encode()
            for n, text in enumerate(texts)
        )
        self.numbers = [*range(first, first + len(self.events))]
        self.checkpoints = (*checkpoints, len(self.events))

    @classmethod
    def drawn(cls, dice: random.Random, *, first: int) -> "History":
        count = dice.randrange(1, 31)
        share = dice.choice((0.1, 0.3, 1.0))
        checkpoints = [number for number in range(1, count) if dice.random() < share]
        return cls([dice.choice(TEXTS) for _ in range(count)], checkpoints, first)

    def page(self, cursor: str, limit: int) -> bytes:
        """Answer a request for about so many events after a cursor."""
        start = 0 if cursor == FIRST else int(cursor.removeprefix("at-"))
        wanted = min(start + limit, len(self.events))
        stop = self.checkpoints[bisect_left(self.checkpoints, wanted)]
        lines = []
        for number in range(start, stop + 1):
            if number in self.checkpoints and (number > start or start == stop):
                flag = b',"caughtUp":true' if number == len(self.events) else b""
                lines.append(b'{"cursor":"at-%d"%b}\n' % (number, flag))
            if number < stop:
                lines.append(b'{"data":%b}\n' % self.events[number])
        return b"".join(lines)


def settled(text: bytes, *, ended: bool) -> int | None:
    """Tell up to which event a checkpoint has come, perhaps as a line without its line break."""
    line = rb'^{"cursor":"at-(\d+)".*}' + (rb"$" if ended else rb"\n")
    found = re.findall(line, text, re.MULTILINE)
    return int(found[-1]) if found else None


class Framing(StrEnum):
    """Name what says where an answer's body ends."""

    LENGTH = "Content-Length"
    CHUNKED = "chunked"
    CLOSE = "close-delimited"


def framed(
    text: bytes, framing: Framing, *, packed: bool, chunk: int = CHUNK
) -> Iterator[tuple[bytes, bool]]:
    """Write an answer as it goes over the wire, in pieces that are of the body, or are not."""
    body = gzip.compress(text, mtime=0) if packed else text
    fields = ["Content-Encoding: gzip"] if packed else []
    if framing is Framing.CHUNKED:
        yield answer(b"", "Transfer-Encoding: chunked", *fields), False
        for start in range(0, len(body), chunk):
            piece = body[start : start + chunk]
            yield b"%x\r\n" % len(piece), False
            yield piece, True
            yield b"\r\n", False
        yield b"0\r\n\r\n", False
        return
    if framing is Framing.LENGTH:
        fields.append(f"Content-Length: {len(body)}")
    yield answer(b"", *fields), False
    yield body, True


class Origin:
    """Answer for a feed, one request a connection, which a plan may break."""

    def __init__(self, histories: Sequence[History], framing: Framing) -> None:
        self.histories = histories
        self.framing = framing
        self.chunk = CHUNK
        self._taking = threading.Lock()
        self.follow({})

    @contextmanager
    def serving(self) -> Iterator[str]:
        with listening(self._serve) as url:
            yield f"{url}/feed"

    def follow(self, plans: Mapping[int | None, Iterable[Plan]]) -> None:
        """Break the next connections as plans say, for each partition, and None for discovery."""
        self._plans = {partition: iter(each) for partition, each in plans.items()}
        self.happened: list[tuple[int | None, Plan]] = []

    def _serve(self, connection: socket) -> None:
        if not (request := request_on(connection)):
            return
        query = parse_qs(urlsplit(request.split(b" ")[1].decode()).query)
        asked = {name: values[0] for name, values in query.items()}
        number = int(asked["partition"]) if asked else None
        with self._taking:
            plan = next(self._plans.get(number, iter(())), Plan())
            self.happened.append((number, plan))
        sending = Sending(connection, plan)
        if number is None:
            info = FeedInfo.of(len(self.histories))
            text = encode_info(replace(info, extensions=frozenset({CAUGHT_UP})))
        else:
            limit = int(asked.get("pagesizehint", "1000"))
            text = self.histories[number].page(asked["cursor"], limit)
        if plan.fault is Fault.TRUNCATED:
            text = text[: plan.at]
        packed = b"gzip" in request.lower()
        pieces = framed(text, self.framing, packed=packed, chunk=self.chunk)
        sending.send(b"".join(piece for piece, _ in pieces))


HISTORY = History(["", "Zoë 😀", "a", '}\n{"cursor":"at-1"}\n', "b"], [1, 3])
"""Three checkpoints, characters of several bytes, and a text that looks like a line."""

Fetch = Callable[[], Page]


@contextmanager
def sync_fetch(url: str, *, packed: bool) -> Iterator[Fetch]:
    """Yield what fetches the first page with a client."""
    with httpx.Client(timeout=PATIENCE) as session:
        yield partial(Client(url, session, compressed=packed).fetch, 0, FIRST)


@contextmanager
def pool_fetch(url: str, *, packed: bool) -> Iterator[Fetch]:
    """Yield what fetches the first page with a client that has a ConnectionPool."""
    with ConnectionPool(timeout=PATIENCE) as http:
        yield partial(Client(url, http, compressed=packed).fetch, 0, FIRST)


@contextmanager
def async_fetch(url: str, *, packed: bool) -> Iterator[Fetch]:
    """Yield what fetches the first page with an async client."""
    with start_blocking_portal() as portal:
        session = httpx.AsyncClient(timeout=PATIENCE)
        client = AsyncClient(url, session, compressed=packed)
        yield partial(portal.call, client.fetch, 0, FIRST)
        portal.call(session.aclose)


class Case:
    """Break answers of one form everywhere, and judge what was made of them."""

    def __init__(self, framing: Framing, packed: bool) -> None:
        self.framing = framing
        self.packed = packed
        self.findings = Findings()
        self._text = HISTORY.page(FIRST, len(HISTORY.events))
        self._pieces = [*framed(self._text, framing, packed=packed)]

    def fetch_all(self, fetching=sync_fetch, *, every: int = 1) -> None:
        """Fetch the answer, broken in every way or some."""
        origin = Origin([HISTORY], self.framing)
        with origin.serving() as url, fetching(url, packed=self.packed) as fetch:
            for plan in self._plans(every):
                origin.follow({0: [plan]})
                try:
                    outcome = fetch()
                except ZeroEventHubError as error:
                    outcome = error
                self._judge(plan, outcome)

    def consume_all(self, account: Account, *, every: int = 1) -> None:
        """Read the feed with whole consumers, whose first answer is broken in every way or some."""
        origin = Origin([HISTORY], self.framing)
        with origin.serving() as url, httpx.Client(timeout=PATIENCE) as session:
            client = Client(url, session, compressed=self.packed)
            for plan in self._plans(every):
                name = self._name(plan)
                origin.follow({0: [plan]})
                with naming(name):
                    met = until_done(partial(account.read_in_turn, client, name))
                self.findings.compare(name, {0: HISTORY.numbers}, account.seen(name))
                self.findings.counts += met + Counter(trials=1)

    def _plans(self, every: int) -> Iterator[Plan]:
        """Yield a plan for each byte and each way to break there, or one of so many of them."""
        marks = [is_body for piece, is_body in self._pieces for _ in piece]
        wire = range(len(marks) + 1)
        places = {
            Fault.CUT: wire,
            Fault.RESET: wire,
            Fault.CORRUPT: wire,
            Fault.TRUNCATED: range(len(self._text) + 1),
            Fault.FLIPPED: [at for at in wire[:-1] if marks[at]] if self.packed else (),
        }
        plans = (Plan(fault, at) for fault, each in places.items() for at in each)
        yield from islice(plans, 0, None, every)

    def _judge(self, plan: Plan, outcome: Page | ZeroEventHubError) -> None:
        """Complain unless a page ends at a checkpoint that has come, and is the truth up to it."""
        if isinstance(outcome, Page):
            number = int(outcome.cursor.removeprefix("at-"))
            events = tuple(event.raw for event in outcome.events)
            right = number in HISTORY.checkpoints and events == HISTORY.events[:number]
            right = right and outcome.caught_up is (number == len(HISTORY.events))
        else:
            number = None
            right = isinstance(outcome, CutPage | Unreachable) or (
                plan.fault.changes and isinstance(outcome, ProtocolError)
            )
        # What a byte that is not the sent one leads to is right if it is the truth or an error.
        right = right and (plan.fault.changes or number in self._expected(plan))
        if not right:
            self.findings.complaints.append(f"{self._name(plan)}: {outcome!r}")
        self.findings.counts.update(["trials", type(outcome).__name__])

    def _expected(self, plan: Plan) -> set[int | None]:
        """Tell up to which event a page may go."""
        if plan.fault is Fault.TRUNCATED:
            return {settled(self._text[: plan.at], ended=True)}
        left, received = plan.at, b""
        for piece, is_body in self._pieces:
            received += piece[: max(0, left)] if is_body else b""
            left -= len(piece)
        if self.packed:
            received = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(received)
        # Whether a line without its break is one depends on how the connection ended.
        return {settled(received, ended=ended) for ended in (False, True)}

    def _name(self, plan: Plan) -> str:
        """Say what does it again."""
        return f"every_cut, {self.framing}, packed={self.packed}, {plan.fault} at {plan.at}"


HEAD = 160  # bytes of an answer that are not of its body, about


def random_faults(account: Account, framing: Framing, seeds: Iterable[int]) -> Findings:
    """Read histories whose answers are framed in one way, in a trial for each seed."""
    found, origin = Findings(), Origin([], framing)
    with origin.serving() as url, httpx.Client(timeout=PATIENCE) as session:
        for seed in seeds:
            name = f"random_faults, seed {seed}, {framing}"
            dice = random.Random(name)
            _set_the_scene(origin, dice)
            way = dice.choices(("in turn", "beside", "async"), (8, 2, 1))[0]
            packed = dice.random() < 0.5
            options = {"limit": dice.choice((None, 1, 2, 5, 20))}
            client = Client(url, session, compressed=packed)
            read = {
                "in turn": partial(account.read_in_turn, client, name, **options),
                "beside": partial(account.read_beside, client, name, **options),
                "async": partial(
                    anyio.run, partial(account.read_async, url, name, packed=packed, **options)
                ),
            }[way]
            with naming(name):
                found.counts += until_done(read) + Counter(trials=1)
            found.counts.update(str(plan.fault) for _, plan in origin.happened)
            truth = {number: history.numbers for number, history in enumerate(origin.histories)}
            found.compare(name, truth, account.seen(name), origin.happened)
    return found


def _set_the_scene(origin: Origin, dice: random.Random) -> None:
    """Draw the histories, and what will happen to the connections."""
    partitions = dice.choice((1, 1, 2))
    origin.chunk = dice.choice((1, 10, 50, 400))
    origin.histories = [History.drawn(dice, first=1000 * number) for number in range(partitions)]
    plans = {}
    for number, history in enumerate(origin.histories):
        length = HEAD + sum(len(event) + 30 for event in history.events)
        plans[number] = [
            draw(dice, dice.randrange(HEAD, length)) for _ in range(dice.randrange(1, 9))
        ]
    plans[None] = [draw(dice, 2 * HEAD) for _ in range(dice.randrange(3))]
    origin.follow(plans)
