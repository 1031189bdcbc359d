"""What it costs to cut a long table into pieces, and how equal those are.

    python -m benchmarks.splits URL [--rows 10000000] [--rounds 5]

The table has four partitions and holes: one row in ten is missing, so is a whole tenth, and numbers
have jumped by a billion. Partition 0 has 1 % of the first half and 90 % of the second.
"""

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    create_engine,
    event,
    func,
    select,
    text,
)

from benchmarks.ordering.bench import arguments
from zeroeventhub.publisher.keyset import NearRows
from zeroeventhub.publisher.ordering import Source
from zeroeventhub.publisher.splits import SplitQuery

COUNTS = (8, 64, 512)
CHUNK = 1_000_000
JUMP = 1_000_000_000

events = Table(
    "splits_benchmark",
    MetaData(),
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("part", Integer, nullable=False),
    Column("data", Text, nullable=False),
)
by_part = Index("splits_benchmark_by_part", events.c.part, events.c.id)

# No row is the same distance from the next one everywhere, and none depends on a clock.
FILL = """INSERT INTO splits_benchmark (id, part, data)
WITH RECURSIVE digits (d) AS (SELECT 0 UNION ALL SELECT d + 1 FROM digits WHERE d < 999),
    numbers (n) AS (SELECT :first + low.d + 1000 * high.d FROM digits AS low, digits AS high),
    mixed (n, mix) AS (SELECT n, (n % 10007 * 7919 + n % 9973 * 10473) % 1000 FROM numbers)
SELECT n + CASE WHEN n > :jump THEN :distance ELSE 0 END,
    CASE WHEN mix % 100 < :share THEN 0 ELSE 1 + mix % 3 END,
    'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'
FROM mixed WHERE mix >= 100 AND n <= :last AND (n <= :hole OR n > :hole_end)"""


def fill(engine: Engine, rows: int) -> None:
    """Make the table anew; its index comes last, which is quicker."""
    by_part.drop(engine, checkfirst=True)
    events.drop(engine, checkfirst=True)
    numbers = rows * 100 // 81  # for what the holes leave out
    places = {"jump": numbers * 7 // 10, "hole": numbers * 2 // 10, "hole_end": numbers * 3 // 10}
    with engine.begin() as connection:
        unlogged = "UNLOGGED " if engine.dialect.name == "postgresql" else ""
        key = "INTEGER" if engine.dialect.name == "sqlite" else "BIGINT"
        connection.execute(
            text(
                f"CREATE {unlogged}TABLE splits_benchmark "
                f"(id {key} PRIMARY KEY, part INTEGER NOT NULL, data TEXT NOT NULL)"
            )
        )
    for first in range(1, numbers + 1, CHUNK):
        values = {"first": first, "last": numbers, "distance": JUMP, **places}
        values["share"] = 1 if first <= numbers // 2 else 90
        with engine.begin() as connection:
            connection.execute(text(FILL), values)
    by_part.create(engine)
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE splits_benchmark"))


def timed(work: Callable[[], Any], rounds: int) -> tuple[float, Any]:
    """Return the median of seconds, and what the work gives."""
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds), result


def worst(connection: Connection, positions: list[int]) -> float:
    """Return the largest piece divided by the mean, both counted."""
    counts = []
    for after, until in pairwise(positions):
        within = events.c.id > after, events.c.id <= until, events.c.part == 0
        counts.append(connection.scalar(select(func.count()).where(*within)) or 0)
    return max(counts) / statistics.mean(counts)


def main() -> None:
    """Fill the table, and print a table of times by the number of pieces."""
    given = arguments(__doc__, rows=10_000_000, rounds=5)
    engine = create_engine(given.url, isolation_level="AUTOCOMMIT")
    fill(engine, given.rows)
    query = SplitQuery(NearRows(Source(events, events.c.id, events.c.part)))
    statements: list[int] = []

    def note(*received: Any) -> None:
        statements.append(received[2].count("LIMIT"))

    lines = ["| pieces | ms | lookups | statements | largest / mean |", "|---|---|---|---|---|"]
    with engine.connect() as connection:
        until = connection.scalar(select(func.max(events.c.id))) or 0
        whole, rows = timed(
            lambda: connection.scalar(select(func.count()).select_from(events)), given.rounds
        )
        lines.append(f"| count(*) of {rows:,} rows | {1000 * whole:,.0f} | | | |")
        for count in COUNTS:
            event.listen(engine, "before_cursor_execute", note)
            statements.clear()
            seconds, positions = timed(
                lambda count=count: query.positions(  # type: ignore[misc]
                    connection, 0, count=count, after=0, until=until
                ),
                given.rounds,
            )
            event.remove(engine, "before_cursor_execute", note)
            lookups, number = (each // given.rounds for each in (sum(statements), len(statements)))
            share = worst(connection, positions)
            lines.append(
                f"| {len(positions) - 1} of {count} | {1000 * seconds:,.0f} | {lookups:,} | "
                f"{number:,} | {share:.2f} |"
            )
    events.drop(engine)
    engine.dispose()
    print("\n".join(lines))  # noqa: T201 - the result


if __name__ == "__main__":
    main()
