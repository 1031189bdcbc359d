"""Segments as they are written, and as they are written anew without what is erased."""

import uuid
from contextlib import suppress
from datetime import timedelta
from io import BytesIO

import pytest
from harness.archives import (
    EVENTS,
    PARTITIONS,
    Died,
    bare,
    dying,
    made,
    opened,
    place,
    positions_in,
    source,
)
from harness.published import install
from harness.statements import add
from harness.tables import event_table
from harness.trimmed import numbers, trim
from pyarrow import parquet
from sqlalchemy import Uuid

from zeroeventhub import FIRST, LAST, TableFeed
from zeroeventhub.archive import Archive
from zeroeventhub.archive.objects import Objects
from zeroeventhub.errors import BadCursor, ConfigurationError
from zeroeventhub.publisher.retention import Retention

ATTRIBUTES = {"id": "id", "key": "customer"}


def erasable(engine, archive):
    """Return a bound feed of thirty-six events with ids and keys, all of them in its archive."""
    feed = opened(engine, archive, **ATTRIBUTES)
    feed.seal(segment_events=10)
    trim(feed, 37)
    return feed


def data_of(archive):
    """The data of all events by position, None for those without a value in any column."""
    found = {}
    for segment in archive.look().segments:
        footer = archive.load(segment, "footer")
        for number in range(len(footer.entries)):
            group = archive.load(segment, number)
            columns = group.columns("id", "key", "headers", "data")
            for index, position in enumerate(group.positions):
                values = [column[index].as_py() for column in columns]
                event = group.event(index)
                found[position] = event.data["n"] if event else next(filter(None, values), None)
    return found


@pytest.mark.parametrize("named", ["ids", "keys"])
def test_each_event_is_found_by_its_id_and_by_its_key(tmp_path, named):
    """Every event of every segment can be erased alone, whatever its id, and the rest stays."""
    archive = Archive(tmp_path, erasable=True)
    names = ["", *(f"{number:02}" for number in range(2, 13))]
    for after in (0, 4, 8):
        own = names[after : after + 4]
        archive.add(
            made(after, after + 4, partitions=2, id=own, key=own, headers=['{"a":"b"}'] * 4), "feed"
        )
    left = {number: number for number in range(1, 13)}
    for number, name in enumerate(names, 1):
        given = {"ids": [], "keys": []} | {named: [name, "none"]}
        assert archive.erase(**given, cursor_at=bare) == 1
        assert archive.erase(**given, cursor_at=bare) == 0
        left[number] = None
        assert data_of(archive) == left
    assert [segment.last for segment in archive.manifest.segments] == ["1-4", "1-8", "1-12"]
    assert [segment.events for segment in archive.manifest.segments] == [0, 0, 0]
    assert sum(erasure.events for erasure in archive.manifest.erasures) == 12


def test_erased_events_are_gone_and_their_cursors_stay(sqlite, tmp_path):
    """After the grace time no file has erased events; every cursor stays valid."""
    archive = Archive(tmp_path / "archive", erasable=True)
    feed = erasable(sqlite, archive)
    reading = Archive(tmp_path / "archive", erasable=True)
    other = source(reading, **ATTRIBUTES).bind(sqlite)
    pages = [feed.read(0, FIRST, count) for count in range(1, 12)]
    assert numbers(other) == numbers(feed) == [*range(0, 36, 3)]
    # The first, the last, and every fourth from the second on.
    for erased in (11, 0):
        assert feed.erase(ids=["1", "36"], keys=["c1"]) == erased
    reading.look()  # as it does once a minute
    left = [[n for n in range(part, 35, 3) if n and n % 4 != 1] for part in range(PARTITIONS)]
    for one in (feed, other):
        assert [numbers(one, partition) for partition in range(PARTITIONS)] == left
        for page in pages:
            at = 3 * len(page.events)
            assert numbers(one, 0, page.cursor) == [number for number in left[0] if number >= at]
        assert one.read(0, LAST, 1).cursor == "1-36"
        assert one.cursor_of("3", 2) == feed.cursor_of("3", 2)
        with pytest.raises(BadCursor):
            one.cursor_of("1", 0)
    gone = Archive(tmp_path / "archive", grace=timedelta(0))
    assert len(gone.tidy()) == 8
    assert len([*(tmp_path / "archive" / "segments").iterdir()]) == 8
    assert numbers(source(gone, **ATTRIBUTES).bind(sqlite)) == left[0]
    with sqlite.begin() as connection:
        place(connection, (0, 0, 0))
    assert feed.seal().events == 1


@pytest.mark.parametrize("as_uuid", [True, False])
def test_events_are_erased_by_uuids_in_any_spelling(any_engine, tmp_path, *, as_uuid):
    """An id and a key that are UUIDs are found however they are written, as they are by readers."""
    one, other, third = (uuid.UUID(int=0xABCDEF << number) for number in range(3))
    table = event_table("log", name=Uuid(as_uuid), owner=Uuid(as_uuid))
    table.create(any_engine)
    rows = [{"name": each, "owner": each} for each in (one, other, third)]
    written = [{name: str(each) for name, each in row.items()} for row in rows]
    add(any_engine, table, rows if as_uuid else written)
    options = {"id": "name", "key": "owner", "append_only": True, "retention": Retention()}
    archive = Archive(tmp_path, erasable=True)
    published = TableFeed(table, data=["id"], archive=archive, **options)
    install(published, any_engine)
    feed = published.bind(any_engine)
    feed.seal()
    assert feed.erase(ids=[f"{{{one}}}".upper()]) == 1
    assert feed.erase(ids=[other.hex, "no uuid"], keys=["no uuid"]) == 1
    assert feed.erase(keys=[third.urn]) == 1


@pytest.mark.slow
def test_death_at_any_step_of_erasing_loses_nothing_else(sqlite, tmp_path):
    """If a process dies at any step of erasing, other events stay, and the next one finishes."""
    feed = erasable(sqlite, Archive(tmp_path, erasable=True))
    there, step, died = set(range(36)), 0, True

    def found(feed):
        return {number for partition in range(3) for number in numbers(feed, partition)}

    while died:
        erased = {sorted(there)[1], sorted(there)[-2]}
        ids = [str(number + 1) for number in erased]
        dead = source(dying(tmp_path, step, erasable=True), **ATTRIBUTES).bind(sqlite)
        died = True
        with suppress(Died):
            dead.erase(ids=ids)
            died = False
        assert there - erased <= found(source(Archive(tmp_path), **ATTRIBUTES).bind(sqlite))
        feed.erase(ids=ids)
        there -= erased
        assert found(feed) == there
        step += 2
    assert step > 6


def test_erasing_beside_sealing_keeps_what_both_did(sqlite, tmp_path):
    """A segment added during an erasure is kept, and erased events do not come back."""
    feed = erasable(sqlite, Archive(tmp_path, erasable=True))
    with sqlite.begin() as connection:
        place(connection, *EVENTS)

    class Busy(Objects):
        def create(self, path, content):
            if path.startswith("segments"):
                feed.seal(segment_events=5)
            return super().create(path, content)

    eraser = source(Archive(Busy(tmp_path), erasable=True), **ATTRIBUTES).bind(sqlite)
    assert eraser.erase(ids=["5"]) == 1
    archive = Archive(tmp_path)
    assert archive.sealed() == 72
    assert positions_in(archive) == [*range(1, 73)]
    assert numbers(source(archive, **ATTRIBUTES).bind(sqlite), 1).count(4) == 1


def test_pages_of_what_may_be_erased_are_not_kept(sqlite, tmp_path):
    """Only a feed that marks no page as immutable lets events be erased."""
    feed = erasable(sqlite, Archive(tmp_path))
    assert feed.read(0, "1-0", 1).full
    with pytest.raises(ConfigurationError, match="erasable=True"):
        feed.erase(ids=["5"])
    for ids in ("5", [5]):
        with pytest.raises(ConfigurationError, match="as lists"):
            feed.erase(ids=ids)
    said = source(Archive(tmp_path, erasable=True), **ATTRIBUTES).bind(sqlite)
    assert not said.read(0, "1-0", 1).full
    assert said.erase(ids=iter(["5"])) == 1


def test_segment_is_parquet_that_others_read(tmp_path):
    """Each row group has the events of one partition, in order, and every reader can read them."""
    archive = Archive(tmp_path)
    archive.add(made(0, 30, partitions=3, type=["placed"] * 30), "feed")
    (segment,) = archive.look().segments
    file = parquet.ParquetFile(BytesIO(archive.content(segment)))
    for number in range(3):
        wanted = [
            {"position": at, "partition": number, "type": "placed", "data": f'{{"n":{at}}}'}
            for at in range(1, 31)
            if at % 3 == number
        ]
        rows = file.read_row_group(number).select([*wanted[0]]).to_pylist()
        assert rows == wanted
    assert file.num_row_groups == 3


def test_row_groups_hold_what_is_fetched_at_once(tmp_path):
    """A row group has at most 10,000 events and 4 MiB of JSON, unless one event is larger."""
    archive = Archive(tmp_path)
    archive.add(made(0, 20_001), "feed")
    large = [f'"{"x" * size}"' for size in (3_000_000, 2_000_000, 1_000_000, 5_000_000, 10)]
    archive.add(made(20_001, 20_006, data=large), "feed")
    groups = [
        [(entry.first, entry.last) for entry in archive.load(one, "footer").entries]
        for one in archive.look().segments
    ]
    assert groups == [
        [(1, 10_000), (10_001, 20_000), (20_001, 20_001)],
        [(20_002, 20_002), (20_003, 20_004), (20_005, 20_005), (20_006, 20_006)],
    ]
