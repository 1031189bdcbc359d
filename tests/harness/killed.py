"""Processes that trim, seal, erase, restore and export, and are killed at a point of it."""

import sys
import threading
from dataclasses import replace
from datetime import timedelta

import duckdb
from sqlalchemy import MetaData, NullPool, create_engine

from harness.forks import forks
from harness.kills.points import Points, kill
from harness.log import LOG
from zeroeventhub import EventLog, NewEvent, Retention, TableFeed, export
from zeroeventhub.archive import Archive, objects
from zeroeventhub.new_events import Batch

PATIENCE = 60  # seconds that a process may take
PLENTY = 10**9  # a position above all others


def source(ordering, archive=None):
    """Return the feed of a log that is trimmed, and moved into its archive if there is one."""
    return TableFeed(
        LOG, data=["n"], id="id", ordering=ordering, retention=Retention(), archive=archive
    )


def opened(store):
    """Open the archive in a store, from which events may be erased, and files go at once."""
    return Archive(store, grace=timedelta(0), erasable=True)


def move(feed, archive):
    """Seal all that can be sealed, trim it, and tidy up."""
    feed.seal(segment_events=3)
    feed.trim(feed.plan_trim(sealed=archive.sealed), rows=2)
    archive.tidy()


def erase(feed, archive, ids):
    """Erase events of an archive, and tidy up."""
    feed.erase(ids=ids)
    archive.tidy()


def until_killed(do, *arguments):
    """Do something in a process of its own, which kills itself at a point."""
    life = forks().Process(target=do, args=arguments)
    life.start()
    life.join(PATIENCE)
    code = life.exitcode
    life.close()
    assert code in {0, -9}, f"the process ended with {code}"
    return code == -9


def trimming(url, ordering, below, at):
    """Trim a log in batches of two."""
    engine = create_engine(url, poolclass=NullPool)
    feed = source(ordering).bind(engine)
    plan = feed.plan_trim(below=below)
    Points(at, kill).watch(engine)
    feed.trim(plan, rows=2)


def keep_and_trim(engine, log, feed):
    """Append to two keys, save snapshots of them, and trim what these cover."""
    for key in ("ada", "bob", "ada"):
        with engine.begin() as connection:
            found = log.restore(connection, key)
            numbers = [*(found.snapshot or []), *(event.data["n"] for event in found.events)]
            new = [NewEvent("counted", {"n": found.version + more}) for more in (1, 2)]
            version = log.append_to(connection, key, new, expected_version=found.version)
            numbers += [version - 1, version]
            log.save_snapshot(connection, key, version, numbers)
    feed.head()
    feed.trim(feed.plan_trim(below=PLENTY), rows=3)


def keeping(url, at):
    """Append to the keys of a log, save snapshots, and trim it."""
    engine = create_engine(url, poolclass=NullPool)
    log = EventLog(MetaData(), "orders", snapshots=True)
    feed = log.feed(retention=Retention()).bind(engine)
    Points(at, kill).watch(engine)
    keep_and_trim(engine, log, feed)


def moving(url, ordering, store, at):
    """Move a log into its archive."""
    move(*_watched(url, ordering, store, at))


def erasing(url, ordering, store, ids, at):
    """Erase events of a log's archive."""
    erase(*_watched(url, ordering, store, at), ids)


def writers(first):
    """The batches of four writers, of which the first event has a number."""
    new = [NewEvent("counted", {"n": first + n}, f"k{n}", f"e{first + n}") for n in range(8)]
    versions = [replace(one, key=f"v{first}", expected_version=n) for n, one in enumerate(new[4:6])]
    return [
        Batch(new[:2]),
        Batch(new[2:4]),
        Batch(versions),
        Batch(new[6:], producer="p", sequence=first // 8 + 1),
    ]


def appending(url, first, at):
    """Append the batches of four writers to a log."""
    engine = create_engine(url, poolclass=NullPool)
    feed = EventLog(MetaData(), "orders", partitions=8, append=True).feed().bind(engine)
    Points(at, kill).watch(engine)
    feed.append(writers(first))


def restoring(url, ordering, store, at):
    """Restore a log from its archive."""
    _watched(url, ordering, store, at)[0].restore(workers=2)


def creating(folder, path, content, at):
    """Create a file of an archive."""
    store = Archive(folder).objects
    _watch_calls_of(objects, Points(at, kill))
    store.create(path, content)


def exporting(url, to, chunk, at):
    """Export a feed in chunks of some rows."""
    points = Points(at, kill)
    export.CHUNK_ROWS = chunk
    duckdb.connect = _watching(duckdb.connect, points)
    _watch_calls_of(export, points)
    export.export(url, to, page_size=5)


class _Watched:
    """Take the moments before and after every call of an object of DuckDB's."""

    def __init__(self, one, points):
        self._one, self._points = one, points

    def __getattr__(self, name):
        value = getattr(self._one, name)
        return _watching(value, self._points) if callable(value) else value

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _watching(function, points):
    def watched(*arguments):
        points.touch()
        found = function(*arguments)
        points.touch()
        return _Watched(found, points) if type(found).__module__ == "_duckdb" else found

    return watched


def _watched(url, ordering, store, at):
    """Return a feed and its archive, of a process that is killed at a point."""
    points = Points(at, kill)
    archive = opened(store)
    engine = create_engine(url, poolclass=NullPool)
    feed = source(ordering, archive).bind(engine)
    points.watch(engine)
    _watch_calls_of(objects, points)
    return feed, archive


def _watch_calls_of(module, points):
    """Take the moments before and after every call by which a module leaves Python."""

    def passed(frame, event, _):
        if event in {"c_call", "c_return"} and frame.f_code.co_filename == module.__file__:
            points.touch()

    threading.setprofile(passed)
    sys.setprofile(passed)
