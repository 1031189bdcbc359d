"""What a page costs at the start, in the middle and at the head of a long table.

    python benchmarks/ordering/pages.py URL [--rows 10000000] [--rounds 15]

The three places take turns; a page has 1,000 events, and is read through the feed itself.
"""

import argparse
import statistics
import time

from bench import NONE, PAYLOAD, VARIANTS, events, new_feed, open_engine, spread
from sqlalchemy import Engine, insert, text

from zeroeventhub import LAST

PAGE = 1000
BATCH = 50_000


def fill(engine: Engine, rows: int) -> None:
    """Fill the table with rows, in transactions of many."""
    short = PAYLOAD[:40]
    for first in range(0, rows, BATCH):
        with engine.begin() as connection:
            connection.execute(insert(events), [{"data": short}] * min(BATCH, rows - first))


def main() -> None:
    """Fill the table in each ordering, and print a table of ratios to a page at the start."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only")
    arguments = parser.parse_args()
    engine = open_engine(arguments.url)
    lines = ["| ordering | start, ms | middle / start | head / start | horizon, ms |"]
    lines.append("|---|---|---|---|---|")
    for ordering in VARIANTS[engine.dialect.name]:
        if ordering == NONE or arguments.only not in {None, ordering}:
            continue
        feed = new_feed(engine, ordering)
        fill(engine, arguments.rows)
        if engine.dialect.name == "postgresql":
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.execute(text("VACUUM ANALYZE"))
        while int(feed.read(0, LAST, 1).cursor.removeprefix("1-")) < arguments.rows:
            pass
        places = {
            "start": 0,
            "middle": arguments.rows // 2,
            "head": arguments.rows - PAGE,
        }
        times: dict[str, list[float]] = {place: [] for place in [*places, "horizon"]}
        for _ in range(arguments.rounds):
            for place, position in places.items():
                began = time.perf_counter()
                page = feed.read(0, f"1-{position}", PAGE)
                times[place].append(1000 * (time.perf_counter() - began))
                assert len(page.events) == PAGE  # noqa: S101 - else it would be no measure
            began = time.perf_counter()
            feed.read(0, LAST, 1)
            times["horizon"].append(1000 * (time.perf_counter() - began))
        start = statistics.median(times["start"])
        ratios = {place: [time_ / start for time_ in times[place]] for place in ("middle", "head")}
        lines.append(
            f"| {ordering} | {start:.2f} | {spread(ratios['middle'])} | "
            f"{spread(ratios['head'])} | {statistics.median(times['horizon']):.2f} |"
        )
    new_feed(engine, NONE)
    events.drop(engine)
    engine.dispose()
    print("\n".join(lines))  # noqa: T201 - the result


if __name__ == "__main__":
    main()
