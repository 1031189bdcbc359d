"""Feeds that are trimmed beside their readers, and processes that are killed while they trim."""

import pytest
from sqlalchemy import NullPool, create_engine

from harness.killed import until_killed
from harness.kills.connecting import arguments
from harness.kills.points import Points, kill
from harness.log import LOG
from zeroeventhub import FIRST, TableFeed
from zeroeventhub.errors import Trimmed
from zeroeventhub.publisher.cursor import Place
from zeroeventhub.publisher.retention import Retention


def source(ordering):
    """Return the feed of a log that is trimmed."""
    return TableFeed(LOG, data=["n"], ordering=ordering, retention=Retention())


def trim_until_killed(url, ordering, below, at):
    """Trim a log in batches of two, in a process that is killed at a point.

    Args:
        url: the log's database.
        ordering: its ordering.
        below: the position below which events go.
        at: the number of the point.

    Returns:
        Whether it was killed before it had come to its end.
    """
    return until_killed(_trim, url, ordering, below, at)


def _trim(url, ordering, below, at):
    engine = create_engine(url, poolclass=NullPool, connect_args=arguments(url))
    feed = source(ordering).bind(engine)
    plan = feed.plan_trim(below=below)
    points = Points(at, kill)
    points.watch(engine)
    feed.trim(plan, rows=2)


class Witness:
    """Know all events that there ever were in a log, and judge what its feed says.

    Args:
        log: the log.
    """

    def __init__(self, log):
        self._log = log
        self.history = {}
        self.cursors = {"1-0": 0}

    def write(self, *numbers):
        """Append events, and remember where they are, and the cursors behind them."""
        self._log.write(*numbers)
        page = self._log.feed.read(0, max(self.cursors, key=self.cursors.get), 1000, each=True)
        assert [event.data["n"] for event in page.events] == [*numbers]
        for number, cursor in zip(numbers, page.cursors, strict=True):
            self.history[Place.of(cursor).position] = number
            self.cursors[cursor] = Place.of(cursor).position

    def judge(self, feed):
        """Show that every reader gets all that follows its cursor, or is refused.

        Args:
            feed: the feed, as any process has it.

        Returns:
            Where the mark is.
        """
        first = feed.read(0, FIRST, 1000)
        mark = Place.of(feed.cursor_after(0)).position
        assert self._numbers(first) == self._behind(mark)
        for cursor, position in self.cursors.items():
            if position < mark:
                with pytest.raises(Trimmed) as trimmed:
                    feed.read(0, cursor, 1000)
                assert Place.of(trimmed.value.earliest).position == mark
            else:
                assert self._numbers(feed.read(0, cursor, 1000)) == self._behind(position), cursor
        left = self._log.count("SELECT count(*) FROM log")
        assert left == len(self._behind(mark))
        return mark

    def forget(self, below):
        """Let go of cursors that nobody has any more."""
        self.cursors = {
            cursor: position for cursor, position in self.cursors.items() if position >= below
        }

    def _behind(self, position):
        return [number for at, number in sorted(self.history.items()) if at > position]

    @staticmethod
    def _numbers(page):
        return [event.data["n"] for event in page.events]
