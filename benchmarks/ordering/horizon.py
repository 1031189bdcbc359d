"""What reading the horizon costs, beside more and more open writers.

    python -m benchmarks.ordering.horizon URL [--rounds 200]

Each writer has written one row and keeps its transaction open.
"""

import argparse
import statistics
import time
from contextlib import ExitStack

from sqlalchemy import insert

from benchmarks.ordering.bench import (
    NONE,
    PAYLOAD,
    READER,
    VARIANTS,
    events,
    finish,
    new_feed,
    open_engine,
    settled,
)

WRITERS = (0, 10, 100)


def main() -> None:
    """Print the median time of a horizon, in milliseconds, by ordering and number of writers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    engine = open_engine(arguments.url)
    lines = ["| ordering | " + " | ".join(f"{number} open writers" for number in WRITERS) + " |"]
    lines.append("|---|" + "---|" * len(WRITERS))
    for ordering in VARIANTS[engine.dialect.name]:
        if ordering in {NONE, READER}:
            continue
        cells = []
        for number in WRITERS:
            feed = new_feed(engine, ordering)
            settled(feed)
            with ExitStack() as stack:
                for _ in range(number):
                    writer = open_engine(arguments.url)
                    stack.callback(writer.dispose)
                    connection = stack.enter_context(writer.connect())
                    connection.execute(insert(events).values(data=PAYLOAD))
                times = []
                for _ in range(arguments.rounds):
                    began = time.perf_counter()
                    settled(feed)
                    times.append(1000 * (time.perf_counter() - began))
            cells.append(f"{statistics.median(times):.2f}")
        lines.append(f"| {ordering} | " + " | ".join(cells) + " |")
    finish(engine)
    print("\n".join(lines))  # noqa: T201 - the result


if __name__ == "__main__":
    main()
