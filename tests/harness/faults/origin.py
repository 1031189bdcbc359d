"""A feed on a raw socket, whose every byte is known, and whose connections break."""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from socket import socket
from urllib.parse import parse_qs, urlsplit

from harness.faults.answer import CHUNK, Answer, Framing
from harness.faults.history import Body, History
from harness.faults.plan import Fault, Plan
from harness.faults.sending import Broken, Sending, reset
from harness.faults.server import listening
from zeroeventhub.ndjson import encode_info
from zeroeventhub.protocol import CAUGHT_UP, FeedInfo

__all__ = ["Origin", "request_of", "serving_histories"]


@dataclass
class Origin:
    """Answer for a feed.

    Attributes:
        histories: the partitions.
        framing: how ends of answers are said.
        plans: what happens to the next connections, by the partition that is asked for, with
            None for discovery; nothing to those behind them.
        chunk: how many bytes are in a chunk.
        happened: the plans that were carried out, and for which partition.
    """

    histories: Sequence[History]
    framing: Framing
    plans: dict[int | None, Iterator[Plan]] = field(default_factory=dict)
    chunk: int = CHUNK
    happened: list[tuple[int | None, Plan]] = field(default_factory=list)
    _taking: threading.Lock = field(default_factory=threading.Lock)

    def follow(self, plans: Mapping[int | None, Iterable[Plan]]) -> None:
        """Break the next connections as plans say."""
        self.plans = {partition: iter(each) for partition, each in plans.items()}
        self.happened = []

    def serve(self, connection: socket) -> None:
        """Serve one connection, which bears one request."""
        request = request_of(connection)
        if not request:
            return
        query = parse_qs(urlsplit(request.split(b" ")[1].decode()).query)
        asked = {name: values[0] for name, values in query.items()}
        partition = int(asked["partition"]) if asked else None
        plan = self._take(partition)
        if plan.fault is Fault.REFUSE:
            reset(connection)
            return
        text = self._info() if partition is None else self._body(partition, asked).text
        if plan.fault is Fault.TRUNCATED:
            text = text[: plan.at]
        packed = b"gzip" in request.lower()
        answer = Answer.of(text, self.framing, packed=packed, chunk=self.chunk)
        with suppress(Broken):
            Sending(connection, plan).send(answer.wire)

    def _body(self, partition: int, asked: Mapping[str, str]) -> Body:
        limit = int(asked.get("pagesizehint", "1000"))
        return self.histories[partition].body(asked["cursor"], limit)

    def _take(self, partition: int | None) -> Plan:
        with self._taking:
            plan = next(self.plans.get(partition, iter(())), Plan())
            self.happened.append((partition, plan))
            return plan

    def _info(self) -> bytes:
        layout = FeedInfo.of(len(self.histories))
        return encode_info(replace(layout, extensions=frozenset({CAUGHT_UP})))


def request_of(connection: socket) -> bytes:
    """Read the head of a request."""
    request = b""
    while b"\r\n\r\n" not in request and (chunk := connection.recv(65536)):
        request += chunk
    return request


@contextmanager
def serving_histories(origin: Origin) -> Iterator[str]:
    """Serve a feed on a raw socket; yield its URL."""
    with listening(origin.serve) as url:
        yield f"{url}/feed"
