"""How well places are found that cut rows evenly, over distributions of many millions of rows."""

from bisect import bisect_right
from itertools import accumulate, pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from zeroeventhub.publisher.splits import LOOKS, LOOKS_A_PIECE, LOOKS_IF_DENSE, ROWS, Window, places

BALANCED = 1.5
"""How much larger than the mean the largest piece may be, if a piece has 1,000 rows in the mean."""


class Era:
    """A run of rows, each with so many positions, after a gap; it takes no memory."""

    def __init__(self, step, rows, gap=0):
        self.step, self.rows, self.gap = step, rows, gap
        self.width = step * rows

    def position(self, number):
        """Return where a row is, from 0."""
        return number * self.step + (number * 2654435761 % 2**32 * self.step >> 32)

    def rank(self, position):
        """Return how many rows are at a position or below it."""
        if not 0 <= position < self.width:
            return self.rows if position >= 0 else 0
        number = position // self.step
        return number + (self.position(number) <= position)


class Rows:
    """Rows of several eras, one after the other."""

    def __init__(self, *eras):
        self.eras = eras
        self.before = [0, *accumulate(era.rows for era in eras)]
        ends = accumulate((era.gap + era.width for era in eras), initial=0)
        self.is_dense = len(eras) == 1 and eras[0].step == 1
        self.starts = [end + era.gap for end, era in zip(ends, eras, strict=False)]

    def __getitem__(self, number):
        """Return where a row is, from 0."""
        era = bisect_right(self.before, number) - 1
        return self.starts[era] + self.eras[era].position(number - self.before[era])

    def rank(self, position):
        """Return how many rows are at a position or below it."""
        era = max(bisect_right(self.starts, position) - 1, 0)
        return self.before[era] + self.eras[era].rank(position - self.starts[era])

    def windows(self, look):
        """Show the rows next to a place, on both sides, no farther than the look goes."""
        rank, first, last = map(self.rank, (look.place, look.low - 1, look.high))
        below, above = min(ROWS, rank - first), min(ROWS, last - rank)
        nothing = Window(0, look.place, look.place)
        return (
            Window(below, self[rank - 1], self[rank - below]) if below else nothing,
            Window(above, self[rank], self[rank + above - 1]) if above else nothing,
        )


def cut(rows, count):
    """Cut rows, and return the sizes of the pieces; no look may be out of place."""
    total = rows.before[-1]
    low, high = rows[0], rows[total - 1]
    lookups = 0

    def see(looks):
        nonlocal lookups
        assert all(low <= look.low <= look.place < look.high <= high for look in looks)
        lookups += 2 * len(looks)
        return [rows.windows(look) for look in looks]

    found = places(low, high, count, see)
    looks = LOOKS_IF_DENSE if rows.is_dense else LOOKS
    assert lookups <= 2 * (looks + LOOKS_A_PIECE * count) + 2
    assert len(found) < count
    assert found == sorted(found)
    assert all(low <= place <= high for place in found)
    ranks = [0, *map(rows.rank, found), total]
    return [upper - lower for lower, upper in pairwise(ranks)]


MILLION = 1_000_000
DISTRIBUTIONS = {
    "every number": Rows(Era(1, 100 * MILLION)),
    "every number, with a hole": Rows(Era(1, 60 * MILLION), Era(1, 40 * MILLION, 60 * MILLION)),
    "every number, with holes": Rows(*(Era(1, MILLION, MILLION) for _ in range(50))),
    "a trimmed front": Rows(Era(3, 100 * MILLION, 10**12)),
    "from 1 % to all": Rows(Era(100, MILLION), Era(1, 100 * MILLION)),
    "nearly all at the end": Rows(Era(1_000, 100_000), Era(1, 5 * MILLION)),
    "a hundred jumps": Rows(*(Era(2, MILLION, 10**9) for _ in range(100))),
    "jumps to the end of numbers": Rows(*(Era(1, 10 * MILLION, 10**18) for _ in range(9))),
    "jumps of all sizes": Rows(*(Era(1, 10_000 * (n % 9 + 1), 10 ** (n % 10)) for n in range(200))),
    "hundred imports": Rows(*(Era(1, 100_000, n * 10**5) for n in range(100))),
    "imports, then a flow": Rows(*(Era(1, 150, 1_350) for _ in range(20_000)), Era(1, 3 * MILLION)),
    "an import into a trickle": Rows(Era(1_000, MILLION), Era(1, 3 * MILLION), Era(1_000, MILLION)),
    "days and nights": Rows(*(Era(1, MILLION) if n % 2 else Era(50, 20_000) for n in range(60))),
}


@pytest.mark.parametrize("count", [5, 8, 64])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_pieces_are_balanced(name, count):
    """No piece is half as large again as the mean, however the rows lie."""
    rows = DISTRIBUTIONS[name]
    assert max(cut(rows, count)) * count <= BALANCED * rows.before[-1]


GAPS = st.one_of(st.integers(1, 3), st.integers(0, 15).map(lambda digits: 10**digits))


@settings(max_examples=40)
@given(st.lists(st.tuples(GAPS, st.integers(1, 300)), min_size=1, max_size=100), st.integers(2, 50))
def test_any_rows_are_cut(spread, count):
    """Whatever the rows are, looks and places lie among them, and no piece is beyond reason."""
    rows = Rows(*(Era(1, number, gap) for gap, number in spread))
    assume(rows.before[-1] >= 2)
    assert max(cut(rows, count)) <= rows.before[-1] / count + ROWS
