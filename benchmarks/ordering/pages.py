"""What a page costs at the start, in the middle and at the head of a long table.

    python -m benchmarks.ordering.pages URL [--rows 10000000] [--rounds 15]

The three places take turns; a page has 1,000 events, and is read through the feed itself. Each
ordering is installed over the same rows.
"""

import statistics
import time

from sqlalchemy import Engine, func, insert, select, text

from benchmarks.ordering.bench import (
    NONE,
    PAYLOAD,
    arguments,
    events,
    finish,
    install,
    new_feed,
    open_engine,
    orderings,
    settled,
    spread,
)

PAGE = 1000


def fill(engine: Engine, rows: int) -> None:
    """Fill the table with rows that double until there are enough."""
    with engine.begin() as connection:
        connection.execute(insert(events), [{"data": PAYLOAD[:40]}] * PAGE)
    written = PAGE
    while written < rows:
        some = select(events.c.data).limit(min(written, rows - written))
        with engine.begin() as connection:
            connection.execute(insert(events).from_select(["data"], some))
        written += min(written, rows - written)
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE ordering_benchmark"))


def main() -> None:
    """Fill the table, and print a table of ratios to a page at the start."""
    given = arguments(__doc__, rows=10_000_000, rounds=15)
    engine = open_engine(given.url)
    new_feed(engine, NONE)
    fill(engine, given.rows)
    with engine.connect() as connection:
        last = connection.scalar(select(func.max(events.c.id)))
    lines = ["| ordering | start, ms | middle / start | head / start |", "|---|---|---|---|"]
    for ordering in orderings(engine):
        feed = install(engine, ordering)
        end = given.rows if ordering == "sequenced" else last
        while settled(feed) < end:
            pass
        places = {"start": 0, "middle": end // 2, "head": end - PAGE}
        times: dict[str, list[float]] = {place: [] for place in places}
        for _ in range(given.rounds):
            for place, position in places.items():
                began = time.perf_counter()
                page = feed.read(0, f"1-{position}", PAGE)
                times[place].append(1000 * (time.perf_counter() - began))
                assert len(page.events) == PAGE  # noqa: S101 - else it would be no measure
        start = statistics.median(times["start"])
        ratios = {place: [each / start for each in times[place]] for place in ("middle", "head")}
        lines.append(
            f"| {ordering} | {start:.2f} | {spread(ratios['middle'])} | {spread(ratios['head'])} |"
        )
    finish(engine)
    print("\n".join(lines))  # noqa: T201 - the result


if __name__ == "__main__":
    main()
