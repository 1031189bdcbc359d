"""What a feed costs the service that it is mounted in, when its readers are many and slow.

    python -m benchmarks.guest [DATABASE …] [--readers 1000] [--waits 5000] [--rounds 3]

One uvicorn process serves endpoints of the host's and a feed. Another process holds requests whose
answers are not read, and requests that wait at the head. A third measures the host's endpoints
without and with them in turn, and what one event costs that all who wait are told of.
"""

import argparse
import http.client
import os
import resource
import statistics
import tempfile
import time
from urllib.parse import urlencode

from sqlalchemy import Engine, create_engine, insert

from benchmarks.acting import acting
from benchmarks.cpu import resident
from benchmarks.events import feed_table
from benchmarks.measuring import quantile
from zeroeventhub import FIRST, LAST, Client

EVENT_BYTES = 2_000
EVENTS = 4_000
SETTLING = 7.0
"""Seconds until all readers have a page on its way or were told to come again, and all wait."""

TABLE = "guest_benchmark"
events = feed_table(TABLE, "text")


def page(**parameters: object) -> str:
    """Return what to ask for to have a page."""
    return "/feed/events?" + urlencode({"token": "1", "partition": 0, **parameters})


def head(port: int) -> str:
    """Return what to ask for to wait at the head of the feed."""
    cursor = Client(f"http://127.0.0.1:{port}/feed").fetch(0, LAST, limit=1).cursor
    return page(cursor=cursor, wait=30)


def measure(port: int, path: str, seconds: float) -> tuple[list[float], int]:
    """Ask one endpoint over and over; return the milliseconds of each answer, and the errors."""
    taken, errors, ending = [], 0, time.monotonic() + seconds
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
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


def compare(database: str, options: argparse.Namespace) -> None:
    """Measure one database, and print a table."""
    engine = create_engine(database)
    fill(engine)
    table: dict[tuple[str, str], list[tuple[float, float]]] = {}
    facts: dict[str, list[float]] = {}
    errors = 0

    def ask(path: str, state: str, seconds: float) -> int:
        taken, wrong = measure(port, path, seconds)
        table.setdefault((path, state), []).append((quantile(taken, 0.5), quantile(taken, 0.99)))
        return wrong

    def note(state: str) -> int:
        facts.setdefault(f"MiB, {state}", []).append(resident(server.number))
        return sum(ask(path, state, options.seconds) for path in ("/async", "/sync"))

    for _ in range(options.rounds):
        with acting("host", {"database": database, "table": TABLE}) as server:
            port = server.ready["port"]
            head(port)

            errors += note("idle")
            before = resident(server.number)
            stalled = page(cursor=FIRST, pagesizehint=EVENTS)
            holding = {"port": port, "path": stalled, "waits": options.waits}
            with acting("hold", {**holding, "readers": 0}) as holder:
                holder.act(head(port))
                time.sleep(SETTLING)
                waits = (resident(server.number) - before) * 1024 / max(1, options.waits)
                facts.setdefault("KiB a wait", []).append(waits)
            with acting("hold", {**holding, "readers": options.readers}) as holder:
                errors += ask("/async", "readers come", SETTLING)
                errors += note("unread")
                holder.act(head(port))
                time.sleep(SETTLING)
                errors += note("unread and waiting")
                with engine.begin() as connection:
                    connection.execute(insert(events), {"data": "news"})
                errors += ask("/async", "the second of an event", 1)
                print(f"  answers to those who waited: {holder.act()}")  # noqa: T201 - the output
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
    """Measure the databases that are asked for."""
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


if __name__ == "__main__":
    main()
