"""Your own feed, without a database: the lines of a file that only grows."""

from pathlib import Path

from starlette.applications import Starlette

from zeroeventhub import FIRST, LAST, Event, FeedInfo, Page, errors, feed_routes

JOURNAL = Path("journal.txt")


class Journal:
    """Publish a file's lines; a cursor is an offset in the file, in bytes."""

    def info(self) -> FeedInfo:
        """Describe a feed of one partition."""
        return FeedInfo.of(partitions=1)

    def read(self, partition: int, cursor: str, limit: int) -> Page:  # noqa: ARG002 - there is one
        """Read whole lines after a cursor."""
        if cursor == LAST:  # a line that is being written follows
            place = JOURNAL.read_bytes().rfind(b"\n") + 1
        elif cursor == FIRST:
            place = 0
        elif cursor.isdecimal():
            place = int(cursor)
        else:
            raise errors.BadCursor("A cursor of this feed is a number of bytes.")
        events = []
        with JOURNAL.open("rb") as journal:
            journal.seek(place)
            while len(events) < limit and (line := journal.readline()).endswith(b"\n"):
                events.append(Event.of({"line": line.decode().rstrip("\n")}))
                place += len(line)
        return Page(events, str(place))


app = Starlette(routes=feed_routes("/journal", Journal()))
