"""What reading the horizon costs, beside more and more open writers.

    python -m benchmarks.ordering.horizon URL [--rounds 200]

Each writer has written one row and keeps its transaction open.
"""

import statistics
import time
from contextlib import ExitStack

from sqlalchemy import insert

from benchmarks.ordering.bench import (
    PAYLOAD,
    arguments,
    events,
    finish,
    new_feed,
    open_engine,
    orderings,
    settled,
)

WRITERS = (0, 10, 100)


def main() -> None:
    """Print the median time of a horizon, in milliseconds, by ordering and number of writers."""
    given = arguments(__doc__, rounds=200)
    engine = open_engine(given.url)
    lines = ["| ordering | " + " | ".join(f"{number} open writers" for number in WRITERS) + " |"]
    lines.append("|---|" + "---|" * len(WRITERS))
    for ordering in orderings(engine):
        cells = []
        for number in WRITERS:
            feed = new_feed(engine, ordering)
            settled(feed)
            with ExitStack() as stack:
                for _ in range(number):
                    writer = open_engine(given.url)
                    stack.callback(writer.dispose)
                    connection = stack.enter_context(writer.connect())
                    connection.execute(insert(events).values(data=PAYLOAD))
                times = []
                for _ in range(given.rounds):
                    began = time.perf_counter()
                    settled(feed)
                    times.append(1000 * (time.perf_counter() - began))
            cells.append(f"{statistics.median(times):.2f}")
        lines.append(f"| {ordering} | " + " | ".join(cells) + " |")
    finish(engine)
    print("\n".join(lines))  # noqa: T201 - the result


if __name__ == "__main__":
    main()
