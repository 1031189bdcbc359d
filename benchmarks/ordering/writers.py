"""What an ordering costs writers, and how long an event takes from its commit to a reader.

    python -m benchmarks.ordering.writers URL [--writers 8] [--think 0] [--rounds 5]

Every round runs each variant once, so that their ratios are of one machine in one mood. Writers are
processes that commit one row at a time, as fast as they can or after --think ms. A reader pages
through the feed all the while; a probe commits a row of its own and waits until it has been read.
"""

import multiprocessing
import statistics
import time
from typing import Any

from sqlalchemy import Engine, insert

from benchmarks.ordering.bench import (
    NONE,
    PAYLOAD,
    READER,
    arguments,
    events,
    finish,
    new_feed,
    open_engine,
    orderings,
    quantiles,
    spread,
    wait_until_readable,
)
from zeroeventhub import LAST
from zeroeventhub.errors import Unavailable

SECONDS = 4.0


def write(url: str, beginning: float, think: float, counts: Any) -> None:
    """Commit rows, one by one, for some seconds from a moment of the system's clock on."""
    engine = open_engine(url)
    count = 0
    with engine.connect() as connection:
        statement = insert(events).inline().values(data=PAYLOAD)
        connection.execute(statement)
        connection.rollback()
        time.sleep(max(0.0, beginning - time.time()))
        while time.time() < beginning + SECONDS:
            connection.execute(statement)
            time.sleep(think) if think else None
            connection.commit()
            count += 1
    counts.put(count)
    engine.dispose()


def probe(engine: Engine, feed: Any, beginning: float) -> list[float]:
    """Measure, in milliseconds, how long rows take from their commit to a reader."""
    delays: list[float] = []
    cursor = None
    while time.time() < beginning + SECONDS:
        if cursor is None:
            try:
                cursor = feed.read(0, LAST, 1).cursor
            except Unavailable:
                time.sleep(0.001)
                continue
        name = f"probe {len(delays)}"
        with engine.begin() as connection:
            connection.execute(insert(events).values(data=name))
        delay, cursor = wait_until_readable(feed, cursor, name)
        delays.append(delay)
        time.sleep(0.02)
    return delays


def run(url: str, variant: str, writers: int, think: float) -> tuple[float, list[float]]:
    """Run a variant once; return transactions a second and the delays in milliseconds."""
    engine = open_engine(url)
    feed = new_feed(engine, variant)
    counts: Any = multiprocessing.Queue()
    beginning = time.time() + 1.0 + writers / 20
    processes = [
        multiprocessing.Process(target=write, args=(url, beginning, think, counts), daemon=True)
        for _ in range(writers)
    ]
    for process in processes:
        process.start()
    delays = [] if feed is None else probe(engine, feed, beginning)
    total = sum(counts.get() for _ in processes)
    for process in processes:
        process.join()
    finish(engine)
    return total / SECONDS, delays


def main() -> None:
    """Run all variants in rounds and print a table of medians."""
    given = arguments(__doc__, writers=8, think=0.0, rounds=5)
    engine = open_engine(given.url)
    variants = (NONE, READER, *orderings(engine))
    engine.dispose()
    rates: dict[str, list[float]] = {variant: [] for variant in variants}
    delays: dict[str, list[float]] = {variant: [] for variant in variants}
    for _ in range(given.rounds):
        for variant in variants:
            rate, measured = run(given.url, variant, given.writers, given.think / 1000)
            rates[variant].append(rate)
            delays[variant] += measured
    lines = ["| ordering | transactions/s | of none | p50 ms | p99 ms |", "|---|---|---|---|---|"]
    for variant in variants:
        ratios = [rate / none for rate, none in zip(rates[variant], rates[NONE], strict=True)]
        lines.append(
            f"| {variant} | {statistics.median(rates[variant]):,.0f} | {spread(ratios)} | "
            f"{quantiles(delays[variant]) if delays[variant] else ' | '} |"
        )
    print("\n".join(lines))  # noqa: T201 - the result


if __name__ == "__main__":
    main()
