"""How many rows are read at once, so that large ones do not fill the host's memory."""

from zeroeventhub.publisher.rows import Rows

__all__ = ["BatchSize"]

FIRST = 8
"""How many rows are read at once while nothing is known of their size."""

GROWTH = 8
"""How many times as many rows as were ever read at once may be read at the next time."""

CHUNK = 250
"""How many rows of a stream are in memory at once, at most: more are not read any faster."""

LARGE = 1024 * 1024
"""How many bytes are read at once, or nearly: memory for longer texts is mapped anew each time, by
the database and here, which costs more than the statements that it saves."""

STATEMENT = 32 * LARGE
"""How many bytes one statement reads as a stream, about."""


class BatchSize:
    """Choose batch sizes by how large the rows of a feed were.

    It never changes what is in a page, only by how many statements it is read. Threads may share
    it: what one overwrites of another's is an estimate.
    """

    def __init__(self) -> None:
        self._largest = 0
        self._usual = 1
        self._most = 1

    def rows(self, left: int, room: int) -> int:
        """Return how many rows to fetch: all that are wanted, or a quarter of those that fit.

        For a moment rows are in memory several times, as the driver has them and as Python does.

        Args:
            left: how many are wanted at most.
            room: how many bytes they may have; below 0 after an event that is larger than a page.
        """
        if not self._largest:
            return min(left, FIRST)
        fitting = max(0, room) // self._largest
        if fitting < left:
            fitting = fitting // 4 + 1
        return min(left, fitting, self._most * GROWTH, LARGE // self._usual + 1)

    @property
    def chunk(self) -> int:
        """Return how many rows of a stream are in memory at once."""
        return min(CHUNK, LARGE // self._largest + 1) if self._largest else FIRST

    def stream(self, left: int) -> int:
        """Return how many rows one statement reads as a stream, of those that are wanted."""
        return min(left, STATEMENT // self._usual + 1) if self._largest else min(left, 1_000)

    def learn(self, rows: Rows) -> None:
        """Take in rows that were read at once; a large one is forgotten by and by."""
        if count := len(rows.texts):
            self._largest = max(rows.largest, self._largest // 2, 1)
            self._usual = max(rows.size(0, count) // count, 1)
            self._most = max(self._most, count)
