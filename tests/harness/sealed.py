"""Feeds whose history moves into an archive, and processes that are killed while they move it."""

import sys
import threading
from datetime import timedelta

from sqlalchemy import NullPool, create_engine

from harness.killed import until_killed
from harness.kills.connecting import arguments
from harness.kills.points import Points, kill
from harness.log import LOG
from zeroeventhub import TableFeed
from zeroeventhub.archive import Archive, objects
from zeroeventhub.publisher.retention import Retention

NOW = timedelta(0)
"""A grace time that is over at once."""


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


def create_until_killed(folder, path, content, at):
    """Create a file of an archive, in a process that is killed at a point.

    Args:
        folder: the archive's.
        path: of the file in it.
        content: what is in it.
        at: the number of the point.

    Returns:
        Whether it was killed before it had come to its end.
    """
    return until_killed(_create, folder, path, content, at)


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


def _create(folder, path, content, at):
    store = objects.Objects(folder)
    _watch_calls_of(objects, Points(at, kill))
    store.create(path, content)


def opened(store):
    """Open the archive in a store, from which events may be erased."""
    return Archive(store, grace=NOW, erasable=True)


def _watched(url, ordering, store, at):
    """Return a feed and its archive, of a process that is killed at a point."""
    points = Points(at, kill)
    archive = opened(store)
    engine = create_engine(url, poolclass=NullPool, connect_args=arguments(url))
    feed = source(ordering, archive).bind(engine)
    points.watch(engine)
    _watch_calls_of(objects, points)
    return feed, archive


def _watch_calls_of(module, points):
    """Take the moments before and behind every call by which a module leaves Python."""

    def passed(frame, event, _):
        if event in {"c_call", "c_return"} and frame.f_code.co_filename == module.__file__:
            points.touch()

    threading.setprofile(passed)
    sys.setprofile(passed)
