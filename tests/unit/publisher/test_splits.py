"""How evenly a partition is cut, however its rows lie."""

from bisect import bisect_right
from itertools import accumulate, chain, pairwise

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert
from sqlalchemy.pool import StaticPool

from zeroeventhub import FIRST, TableFeed

BALANCED = 1.5
"""How much larger than the mean the largest piece may be, if a piece has 1,000 rows in the mean."""

# Eras of rows: how many, how many positions there are for each, and how many are left out before.
DISTRIBUTIONS = {
    "every number": [(20_000, 1, 0)],
    "a trimmed front": [(20_000, 3, 10**12)],
    "from 1 % to all": [(1_000, 100, 0), (19_000, 1, 0)],
    "from all to 1 %": [(19_000, 1, 0), (1_000, 100, 0)],
    "nearly all at the end": [(500, 1_000, 0), (19_500, 1, 0)],
    "a jump": [(10_000, 1, 0), (10_000, 1, 10**9)],
    "a hundred jumps": [(200, 2, 10**9)] * 100,
    "jumps to the end of numbers": [(2_500, 1, 10**18)] * 8,
    "jumps of all sizes": [(100 * (n % 9 + 1), 1, 10 ** (n % 10)) for n in range(50)],
    "blocks of which half is used": [(100, 1, 100)] * 200,
    "an import into a trickle": [(5_000, 1_000, 0), (10_000, 1, 0), (5_000, 1_000, 0)],
    "a step of ten, six times": [(4_000, 10**n, 0) for n in range(6)],
    "days and nights": [(600, 1, 0), (12, 50, 0)] * 35,
}


def positions(eras):
    """Return where the rows of some eras are."""
    starts = accumulate((gap + rows * step for rows, step, gap in eras), initial=1)
    return list(
        chain.from_iterable(
            range(start + gap, start + gap + rows * step, step)
            for start, (rows, step, gap) in zip(starts, eras, strict=False)
        )
    )


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_pieces_are_balanced(name):
    """No piece is half as large again as the mean, however the rows lie."""
    table = Table("log", MetaData(), Column("id", Integer, primary_key=True))
    rows = positions(DISTRIBUTIONS[name])
    engine = create_engine("sqlite://", poolclass=StaticPool)
    with engine.begin() as connection:
        table.create(connection)
        connection.execute(insert(table), [{"id": row} for row in rows])
    feed = TableFeed(table, data=["id"], append_only=True).bind(engine)
    for count in (2, 7, 19):
        cuts = feed.splits(0, count, start=FIRST)
        ranks = [bisect_right(rows, int(cut.split("-")[1])) for cut in cuts]
        sizes = [upper - lower for lower, upper in pairwise(ranks)]
        assert (len(sizes), sum(sizes)) == (count, len(rows))
        assert max(sizes) * count <= BALANCED * len(rows)
    engine.dispose()
