"""What an ordering costs writers, and how long an event takes from its commit to a reader.

    python benchmarks/ordering.py postgresql+psycopg://user@host/database [--writers 8]

Every round runs each variant once, so that their ratios are of one machine in one mood. Writers are
processes that commit one row at a time, as fast as they can. A reader polls the horizon all the
while; a probe commits a row of its own and waits until the horizon has reached it.
"""

import argparse
import multiprocessing
import statistics
import time
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    Identity,
    MetaData,
    Table,
    Text,
    create_engine,
    insert,
)

from zeroeventhub import LAST, TableFeed
from zeroeventhub.errors import Unavailable

VARIANTS = ("none", "observed", "gated")
SECONDS = 4.0
PAYLOAD = "x" * 300

events = Table(
    "ordering_benchmark",
    MetaData(),
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("data", Text, nullable=False),
)


def write(url: str, ending: float, counts: Any) -> None:
    """Commit rows, one by one, until a moment of the system's clock."""
    engine = create_engine(url)
    count = 0
    with engine.connect() as connection:
        statement = insert(events).inline().values(data=PAYLOAD)
        while time.time() < ending:
            connection.execute(statement)
            connection.commit()
            count += 1
    counts.put(count)
    engine.dispose()


def probe(engine: Engine, feed: Any, ending: float) -> list[float]:
    """Measure, in milliseconds, how long rows take from their commit to the horizon."""
    delays = []
    while time.time() < ending:
        with engine.begin() as connection:
            number = connection.scalar(insert(events).values(data=PAYLOAD).returning(events.c.id))
        committed = time.perf_counter()
        while settled(feed) < number:
            time.sleep(0.001)
        delays.append(1000 * (time.perf_counter() - committed))
        time.sleep(0.02)
    return delays


def settled(feed: Any) -> int:
    """Read the horizon; 0 while it is not known."""
    try:
        return int(feed.read(0, LAST, 1).cursor.removeprefix("1-"))
    except Unavailable:
        return 0


def run(url: str, variant: str, writers: int) -> tuple[float, list[float]]:
    """Run a variant once; return transactions a second and the delays in milliseconds."""
    engine = create_engine(url)
    events.drop(engine, checkfirst=True)
    events.create(engine)
    source = TableFeed(events, data="data", ordering=None if variant == "none" else variant)
    if variant != "none":
        with engine.begin() as connection:
            source.install(connection)
    counts: Any = multiprocessing.Queue()
    started = time.time() + 1.0
    ending = started + SECONDS
    processes = [
        multiprocessing.Process(target=write, args=(url, ending, counts)) for _ in range(writers)
    ]
    for process in processes:
        process.start()
    delays = [] if variant == "none" else probe(engine, source.bind(engine), ending)
    total = sum(counts.get() for _ in processes)
    for process in processes:
        process.join()
    events.drop(engine)
    engine.dispose()
    return total / (SECONDS + 1.0), delays


def main() -> None:
    """Run all variants in rounds and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rates: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    delays: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for _ in range(arguments.rounds):
        for variant in VARIANTS:
            rate, measured = run(arguments.url, variant, arguments.writers)
            rates[variant].append(rate)
            delays[variant] += measured
    for variant in VARIANTS:
        ratios = [rate / none for rate, none in zip(rates[variant], rates["none"], strict=True)]
        line = (
            f"{variant:<9} {statistics.median(rates[variant]):>7,.0f} transactions/s, "
            f"{statistics.median(ratios):.2f} of none ({min(ratios):.2f} to {max(ratios):.2f})"
        )
        if delays[variant]:
            cuts = statistics.quantiles(delays[variant], n=100)
            line += f"; commit to horizon p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms"
        print(line)  # noqa: T201 - the result


if __name__ == "__main__":
    main()
