"""Append events by several writers at a time, each of which waits for its answer."""

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from threading import Barrier, Thread
from typing import Any

import nats
import psycopg
import uvloop
from nats.js.api import StreamConfig

from benchmarks.actors.speaking import perform, task
from benchmarks.measuring import quantile

Rows = Sequence[tuple[int, str, str, str, str]]
NAMES = "partition, id, key, type, data"


def rows(events: int) -> Rows:
    """Make the rows of events, with about 100 bytes of JSON each."""
    run = time.time_ns()
    data = [json.dumps({"n": n, "amount": 12.5, "note": "x" * 60}) for n in range(events)]
    return [(0, f"{run}-{n}", f"k{n % 1000}", "OrderPlaced", data[n]) for n in range(events)]


def lines(batch: Rows) -> bytes:
    """Write events as lines."""
    return b"".join(
        b'{"id":"%b","type":"%b","key":"%b","data":%b}\n'
        % (one[1].encode(), one[3].encode(), one[2].encode(), one[4].encode())
        for one in batch
    )


def request(batch: Rows) -> bytes:
    """Write a request that appends a batch."""
    body = lines(batch)
    return (
        b"POST /log/append HTTP/1.1\r\nHost: log\r\nContent-Type: application/x-ndjson\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    ) + body


def xadd(batch: Rows) -> bytes:
    """Write the commands that add a batch to a stream of Redis."""
    commands = []
    for _, identity, key, kind, data in batch:
        words = ["XADD", "log", "*", "id", identity, "key", key, "type", kind, "data", data]
        commands.append(b"*%d\r\n" % len(words))
        commands += [b"$%d\r\n%b\r\n" % (len(word), word.encode()) for word in words]
    return b"".join(commands)


LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)


def is_answer(received: bytes) -> bool:
    """Tell whether an answer of HTTP is complete; fail if it is a refusal."""
    head = received.find(b"\r\n\r\n")
    if head < 0:
        return False
    assert received.startswith(b"HTTP/1.1 201"), received  # noqa: S101 - else it is no measure
    return len(received) >= head + 4 + int(LENGTH.search(received, 0, head + 2)[1])  # type: ignore[index] # it is there


class Writer(asyncio.Protocol):
    """Send requests one after the other, each once the one before it is answered."""

    def __init__(
        self, requests: Iterator[bytes], is_done: Callable[[bytes], bool], waits: list[float]
    ) -> None:
        self._requests = requests
        self._waits = waits
        self._sent = 0.0
        self._is_done = is_done
        self._received = b""
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        """Keep the connection."""
        self._transport = transport

    def send(self) -> None:
        """Send the next request."""
        following = next(self._requests, None)
        if following is None:
            self.ended.set_result(None)
        else:
            self._sent = time.perf_counter()
            self._transport.write(following)

    def data_received(self, data: bytes) -> None:
        """Take a part of an answer."""
        self._received += data
        if self._is_done(self._received):
            self._received = b""
            self._waits.append(time.perf_counter() - self._sent)
            self.send()


async def over_sockets(
    port: int,
    requests: Sequence[bytes],
    writers: int,
    is_done: Callable[[bytes], bool],
    waits: list[float],
) -> float:
    """Send requests over so many connections; return how many seconds it took."""
    loop, left = asyncio.get_running_loop(), iter(requests)
    made = [
        (await loop.create_connection(lambda: Writer(left, is_done, waits), "127.0.0.1", port))[1]
        for _ in range(writers)
    ]
    began = time.perf_counter()
    for writer in made:
        writer.send()
    await asyncio.gather(*(writer.ended for writer in made))
    return time.perf_counter() - began


async def by_nats(port: int, batches: Sequence[Rows], writers: int, waits: list[float]) -> float:
    """Publish to a stream of NATS JetStream, and wait for each acknowledgement."""
    left = iter(batches)
    server = await nats.connect(f"nats://127.0.0.1:{port}")
    stream = server.jetstream()
    await stream.add_stream(StreamConfig(name="log", subjects=["log"]))

    async def write() -> None:
        for batch in left:
            sent = time.perf_counter()
            await asyncio.gather(*(stream.publish("log", lines([one])) for one in batch))
            waits.append(time.perf_counter() - sent)

    began = time.perf_counter()
    await asyncio.gather(*(write() for _ in range(writers)))
    seconds = time.perf_counter() - began
    await server.close()
    return seconds


def by_driver(wanted: dict[str, Any], batches: Sequence[Rows], waits: list[float]) -> float:
    """Insert rows over so many connections of the driver; return how many seconds it took."""
    left, start = iter(batches), Barrier(wanted["writers"] + 1)
    insert = f"INSERT INTO {wanted['table']} ({NAMES}) VALUES (%s, %s, %s, %s, %s)"  # noqa: S608
    copy = f"COPY {wanted['table']} ({NAMES}) FROM STDIN"

    def write() -> None:
        with psycopg.connect(wanted["database"], autocommit=True) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT 1")
            start.wait()
            for batch in left:
                sent = time.perf_counter()
                if len(batch) == 1:
                    cursor.execute(insert, batch[0], prepare=True)
                else:
                    with cursor.copy(copy) as copying:
                        for row in batch:
                            copying.write_row(row)
                waits.append(time.perf_counter() - sent)

    threads = [Thread(target=write) for _ in range(wanted["writers"])]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def main() -> None:
    """Append as it is told to."""
    wanted = task()

    def work(order: dict[str, int]) -> dict[str, Any]:
        made, size = rows(order["events"]), wanted["size"]
        batches = [made[first : first + size] for first in range(0, len(made), size)]
        waits: list[float] = []
        writers = wanted["writers"]
        if wanted["way"] == "driver":
            seconds = by_driver(wanted, batches, waits)
        elif wanted["way"] == "nats":
            seconds = uvloop.run(by_nats(wanted["port"], batches, writers, waits))
        else:
            is_http = wanted["way"] == "http"
            sent = [*map(request if is_http else xadd, batches)]
            done = is_answer if is_http else _has_answers(size)
            seconds = uvloop.run(over_sockets(wanted["port"], sent, writers, done, waits))
        return {"events": len(made), "seconds": seconds, "p99": quantile(waits, 0.99) * 1_000}

    perform(work)


def _has_answers(size: int) -> Callable[[bytes], bool]:
    """Return what tells whether Redis has answered so many commands: each by two lines."""
    return lambda received: received.count(b"\r\n") >= 2 * size


if __name__ == "__main__":
    main()
