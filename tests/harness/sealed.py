"""Feeds whose history moves into an archive, and processes that are killed while they move it."""

import sys
from datetime import timedelta
from pathlib import Path

from sqlalchemy import NullPool, create_engine

from harness.killed import until_killed
from harness.kills.connecting import arguments
from harness.kills.points import Points, kill
from harness.log import LOG
from zeroeventhub import TableFeed
from zeroeventhub.archive import Archive
from zeroeventhub.archive.objects import Objects
from zeroeventhub.publisher.retention import Retention

NOW = timedelta(0)
"""A grace time that is over at once."""

FILES = frozenset({"open", "os.link", "os.mkdir", "os.remove"})
"""What changes a folder, and what Python tells before it does so."""


def source(ordering, archive):
    """Return the feed of a log whose events move into an archive, and may be erased."""
    return TableFeed(
        LOG, data=["n"], id="id", ordering=ordering, retention=Retention(), archive=archive
    )


def move_until_killed(url, ordering, store, at):
    """Seal a log by three, trim it by two, and tidy up, in a process that is killed at a point.

    Args:
        url: the log's database.
        ordering: its ordering.
        store: what its archive is in.
        at: the number of the point.

    Returns:
        Whether it was killed before it had come to its end.
    """
    return until_killed(_move, url, ordering, store, at)


def erase_until_killed(url, ordering, store, ids, at):
    """Erase events of an archive and tidy up, in a process that is killed at a point.

    Args:
        url: the log's database.
        ordering: its ordering.
        store: what its archive is in.
        ids: of the events.
        at: the number of the point.

    Returns:
        Whether it was killed before it had come to its end.
    """
    return until_killed(_erase, url, ordering, store, ids, at)


def move(feed, archive):
    """Seal all that can be sealed, trim it, and tidy up."""
    feed.seal(segment_events=3)
    feed.trim(feed.plan_trim(sealed=archive.sealed), rows=2)
    archive.tidy()


def erase(feed, archive, ids):
    """Erase events, and tidy up."""
    feed.erase(ids=ids)
    archive.tidy()


def _move(url, ordering, store, at):
    move(*_watched(url, ordering, store, at))


def _erase(url, ordering, store, ids, at):
    erase(*_watched(url, ordering, store, at), ids)


def opened(store):
    """Open the archive in a store, from which events may be erased."""
    return Archive(store, grace=NOW, erasable=True)


def _watched(url, ordering, store, at):
    """Return a feed and its archive, of a process that is killed at a point."""
    points = Points(at, kill)
    archive = opened(_WatchedObjects(store, points))
    engine = create_engine(url, poolclass=NullPool, connect_args=arguments(url))
    feed = source(ordering, archive).bind(engine)
    points.watch(engine)
    if isinstance(store, Path):
        sys.addaudithook(
            lambda name, told: (
                points.touch() if name in FILES and Path(told[0]).is_relative_to(store) else None
            )
        )
    return feed, archive


class _WatchedObjects(Objects):
    """Objects of a process, with a point before and behind each of its changes.

    Args:
        store: where they are.
        points: counts them.
    """

    def __init__(self, store, points):
        super().__init__(store)
        self._points = points

    def create(self, path, content):
        """Create an object."""
        self._points.touch()
        created = super().create(path, content)
        self._points.touch()
        return created

    def delete(self, paths):
        """Delete objects one by one."""
        for path in paths:
            self._points.touch()
            super().delete([path])
            self._points.touch()
