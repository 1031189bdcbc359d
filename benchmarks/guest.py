"""What a feed costs the service that it is mounted in, when its readers are many and slow.

    python -m benchmarks.guest [DATABASE …] [--readers 1000] [--waits 5000] [--rounds 3]

One uvicorn process serves endpoints of the host's and a feed. Another process holds requests whose
answers are not read, and requests that wait at the head. A third measures the host's endpoints
without and with them in turn, and what one event costs that all who wait are told of.
"""

import argparse
import asyncio
import http.client
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlencode, urlsplit

import uvicorn
from sqlalchemy import Engine, create_engine, insert, text
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from benchmarks.cpu import resident
from benchmarks.events import feed_table
from benchmarks.measuring import quantile
from zeroeventhub import FIRST, LAST, TableFeed, feed_routes

EVENT_BYTES = 2_000
EVENTS = 4_000
BATCH = 100
"""How many requests are made before the server is let answer them: more than a backlog is lost."""
SETTLING = 7.0
"""Seconds until all readers have a page on its way or were told to come again, and all wait."""

events = feed_table("guest_benchmark", "text")


def serve(database: str, port: int) -> None:
    """Serve a host's endpoints, and a feed beside them."""
    engine = create_engine(database, pool_size=10)

    async def quick(_: Request) -> PlainTextResponse:
        return PlainTextResponse("well")

    def query(_: Request) -> PlainTextResponse:
        with engine.connect() as connection:
            return PlainTextResponse(str(connection.scalar(text("SELECT 1"))))

    routes = [Route("/async", quick), Route("/sync", query)]
    routes += feed_routes("/feed", TableFeed(events, data={"text": "data"}), engine)
    uvicorn.run(
        Starlette(routes=routes),
        port=port,
        log_level="error",
        backlog=8192,
        timeout_graceful_shutdown=5,
    )


def page(**parameters: object) -> str:
    """Return what to ask for to have a page."""
    return "/feed/events?" + urlencode({"token": "1", "partition": 0, **parameters})


async def hold(url: str, readers: int, waits: int) -> None:
    """Hold requests that nobody reads, and requests that wait; tell when they are, by a line."""
    parts = urlsplit(url)
    tail = f" HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode()
    stalled = b"GET " + page(cursor=FIRST, pagesizehint=EVENTS).encode() + tail
    loop = asyncio.get_running_loop()
    held = []

    async def ask(request: bytes, room: int | None = None) -> None:
        connection = socket.socket()
        connection.settimeout(0)
        if room:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        await loop.sock_connect(connection, (parts.hostname, parts.port))
        await loop.sock_sendall(connection, request)
        held.append(connection)

    for _ in range(0, readers, BATCH):
        await asyncio.gather(*(ask(stalled, 4096) for _ in range(min(BATCH, readers))))
        await asyncio.sleep(0.1)
    sys.stdout.write("stalled\n")
    sys.stdout.flush()
    line = await loop.run_in_executor(None, sys.stdin.readline)
    waiting = b"GET " + page(cursor=line.strip(), wait=30).encode() + tail

    async def wait_on_and_on() -> None:
        """Ask again as soon as there is an answer, as consumers do."""
        while True:
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                writer.write(waiting)
                head = await reader.readuntil(b"\r\n\r\n")
                told.append(head.split(b" ", 2)[1])
                if told[-1] != b"200":
                    await asyncio.sleep(1)  # as it is told to
            except (ConnectionError, asyncio.IncompleteReadError):
                told.append(b"cut")
            finally:
                writer.close()

    told: list[bytes] = []
    tasks = []
    for _ in range(0, waits, BATCH):
        tasks += [asyncio.create_task(wait_on_and_on()) for _ in range(min(BATCH, waits))]
        await asyncio.sleep(0.2)
    sys.stdout.write("waiting\n")
    sys.stdout.flush()
    while await loop.run_in_executor(None, sys.stdin.readline):
        sys.stdout.write(json.dumps({code.decode(): told.count(code) for code in set(told)}) + "\n")
        sys.stdout.flush()
        told.clear()


def measure(url: str, path: str, seconds: float) -> tuple[list[float], int]:
    """Ask one endpoint over and over; return the milliseconds of each answer, and the errors."""
    parts = urlsplit(url)
    taken, errors, ending = [], 0, time.monotonic() + seconds
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    while time.monotonic() < ending:
        began = time.perf_counter()
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            errors += answer.status != http.HTTPStatus.OK
        except OSError:
            errors += 1
            connection.close()
        taken.append((time.perf_counter() - began) * 1000)
        time.sleep(0.002)  # a host is not asked without a pause
    connection.close()
    return taken, errors


def fill(engine: Engine) -> None:
    """Make the table anew, with pages that are larger than what a system takes unread."""
    events.drop(engine, checkfirst=True)
    events.create(engine)
    with engine.begin() as connection:
        connection.execute(insert(events), [{"data": "x" * EVENT_BYTES}] * EVENTS)


@contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Run this module in a process of its own."""
    process = subprocess.Popen(  # noqa: S603 - this module
        [sys.executable, "-m", "benchmarks.guest", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def said(process: subprocess.Popen[str]) -> str:
    """Return the next line of a process."""
    assert process.stdout is not None  # noqa: S101 - it was started with one
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], line: str) -> None:
    """Write a line to a process."""
    assert process.stdin is not None  # noqa: S101 - it was started with one
    process.stdin.write(line + "\n")
    process.stdin.flush()


def head(url: str) -> str:
    """Return the cursor at the head of the feed."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    connection.request("GET", page(cursor=LAST))
    cursor: str = json.loads(connection.getresponse().read())["cursor"]
    connection.close()
    return cursor


def started(url: str) -> None:
    """Wait until a server answers."""
    parts = urlsplit(url)
    ending = time.monotonic() + 60
    while time.monotonic() < ending:
        try:
            socket.create_connection((parts.hostname or "", parts.port or 0)).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit("The server did not start.")


def compare(database: str, options: argparse.Namespace) -> None:
    """Measure one database, and print a table."""
    engine = create_engine(database)
    fill(engine)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    table: dict[tuple[str, str], list[tuple[float, float]]] = {}
    facts: dict[str, list[float]] = {}
    errors = 0

    def ask(path: str, state: str, seconds: float) -> int:
        taken, wrong = measure(url, path, seconds)
        table.setdefault((path, state), []).append((quantile(taken, 0.5), quantile(taken, 0.99)))
        return wrong

    def note(state: str) -> int:
        facts.setdefault(f"MiB, {state}", []).append(resident(server.pid))
        return sum(ask(path, state, options.seconds) for path in ("/async", "/sync"))

    for _ in range(options.rounds):
        with running("serve", database, str(port)) as server:
            started(url)
            head(url)

            errors += note("idle")
            before = resident(server.pid)
            with running("hold", url, "0", str(options.waits)) as holder:
                said(holder)
                tell(holder, head(url))
                said(holder)
                time.sleep(SETTLING)
                waits = (resident(server.pid) - before) * 1024 / max(1, options.waits)
                facts.setdefault("KiB a wait", []).append(waits)
            with running("hold", url, str(options.readers), str(options.waits)) as holder:
                said(holder)
                errors += ask("/async", "readers come", SETTLING)
                errors += note("unread")
                tell(holder, head(url))
                said(holder)
                time.sleep(SETTLING)
                errors += note("unread and waiting")
                with engine.begin() as connection:
                    connection.execute(insert(events), {"data": "news"})
                errors += ask("/async", "the second of an event", 1)
                tell(holder, "")
                print(f"  answers to those who waited: {said(holder)}")  # noqa: T201 - the output
    engine.dispose()
    show(engine.dialect.name, table, facts, errors)


def show(
    database: str,
    table: dict[tuple[str, str], list[tuple[float, float]]],
    facts: dict[str, list[float]],
    errors: int,
) -> None:
    """Print what was found: medians over the rounds, and ratios to what is idle."""
    print(f"\n{database}, {errors} errors\n")  # noqa: T201 - the output
    print("| endpoint | state | p50, ms | p99, ms | p99 / idle |")  # noqa: T201
    print("|---|---|---|---|---|")  # noqa: T201
    for (path, state), found in table.items():
        middle = [statistics.median(one) for one in zip(*found, strict=True)]
        ratios = [own[1] / idle[1] for own, idle in zip(found, table[path, "idle"], strict=True)]
        print(  # noqa: T201
            f"| {path} | {state} | {middle[0]:.2f} | {middle[1]:.2f} "
            f"| {statistics.median(ratios):.2f} |"
        )
    for name, values in facts.items():
        print(f"{name}: {statistics.median(values):.1f}")  # noqa: T201


def main() -> None:
    """Measure, or be one of the processes that measuring needs."""
    if sys.argv[1:2] == ["serve"]:
        return serve(sys.argv[2], int(sys.argv[3]))
    if sys.argv[1:2] == ["hold"]:
        return asyncio.run(hold(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("databases", nargs="*", help="by default SQLite, in a file of its own")
    parser.add_argument("--readers", type=int, default=1_000)
    parser.add_argument("--waits", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each measurement")
    options = parser.parse_args()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    print(f"load {os.getloadavg()[0]:.1f}")  # noqa: T201 - what measurements are worth
    with tempfile.TemporaryDirectory() as folder:
        for database in options.databases or [f"sqlite:///{folder}/guest.db"]:
            compare(database, options)
    return None


if __name__ == "__main__":
    main()
