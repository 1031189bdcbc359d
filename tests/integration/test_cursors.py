"""The store of cursors on every database: what it writes, and what it refuses."""

import threading

import pytest
from sqlalchemy import create_engine

from zeroeventhub import FIRST, LAST, CursorStore
from zeroeventhub.errors import Fenced, TokenChanged


@pytest.fixture
def store(engine):
    """A store whose table is there."""
    store = CursorStore(engine)
    with engine.begin() as connection:
        store.create_tables(connection)
    return store


def load(store, partition, **options):
    """Load a cursor in a transaction of its own."""
    with store.engine.begin() as connection:
        return store.load(connection, "billing", partition, **options)


def move(store, partition, old, new):
    """Move a cursor in a transaction of its own."""
    with store.engine.begin() as connection:
        result = connection.execute(store.move("billing", partition, old, new))
        store.confirm(result, "billing", partition)


def inherit(store, heirs, remaining=None):
    """Hand cursors over in a transaction of their own."""
    with store.engine.begin() as connection:
        store.inherit(connection, "billing", heirs, heirs if remaining is None else remaining)


def test_new_consumer_stands_at_its_start(store):
    """A consumer without a cursor gets the start, which stays whatever is asked later."""
    assert load(store, 0) == FIRST
    assert load(store, 1, start="7") == "7"
    assert load(store, 1, start="8") == "7"


def test_start_written_by_a_rival_is_seen_in_an_older_snapshot(mariadb):
    """Where a transaction reads one snapshot, it still finds the row that kept it from writing."""
    store = CursorStore(mariadb)
    with mariadb.begin() as connection:
        store.create_tables(connection)
    with mariadb.begin() as connection:
        store.load(connection, "billing", 0)
        load(store, 1, start="7")
        assert store.load(connection, "billing", 1, start="8") == "7"


def test_cursor_moves_only_from_where_it_stands(store):
    """A move from another place, or to a place without a row, is fenced."""
    load(store, 0)
    move(store, 0, FIRST, "a")
    for partition, old in [(0, FIRST), (0, "A"), (1, FIRST)]:
        with pytest.raises(Fenced):
            move(store, partition, old, "b")
    assert load(store, 0) == "a"


def test_heirs_start_where_their_parent_stood(store):
    """Every heir takes the nearest parent's cursor, and one that has its own keeps it."""
    for partition, cursor in [(0, "old"), (1, "near"), (4, "own")]:
        load(store, partition, start=cursor)
    inherit(store, {2: [1, 0], 3: [1], 4: [0], 5: [9]})
    assert [load(store, partition) for partition in (2, 3, 4, 5)] == ["near", "near", "own", FIRST]


def test_partition_that_was_taken_over_is_not_started_again(store):
    """A feed that still shows a parent, as during a deployment, does not repeat its events."""
    load(store, 0, start="a")
    inherit(store, {1: [0], 2: [0]})
    with pytest.raises(TokenChanged):
        load(store, 0)
    with store.engine.begin() as connection:
        assert store.cursors(connection, "billing") == {1: "a", 2: "a"}
    move(store, 1, "a", "b")
    inherit(store, {1: [0], 2: [0]})
    assert (load(store, 1), load(store, 2)) == ("b", "a")


def test_partition_that_comes_back_takes_its_heirs_cursor(store):
    """A partition that was gone, and is now an heir of its heir, goes on from there."""
    load(store, 0, start="a")
    inherit(store, {1: [0]})
    move(store, 1, "a", "b")
    inherit(store, {0: [1]})
    assert load(store, 0) == "b"


def begin(store, partitions, start):
    """Begin in a transaction of its own."""
    with store.engine.begin() as connection:
        store.begin(connection, "billing", partitions, start)


def test_new_consumer_starts_everywhere_at_once(store):
    """A new consumer starts in all partitions where it wants to, and later ones at their start."""
    begin(store, [0, 1], LAST)
    begin(store, [0, 1, 2], LAST)
    assert [load(store, partition) for partition in range(3)] == [LAST, LAST, FIRST]


def test_page_of_a_partition_that_is_gone_is_fenced(store):
    """Who still holds a page of the parent cannot commit it once the heirs have its cursor."""
    load(store, 0, start="a")
    inherit(store, {1: [0], 2: [0]})
    with pytest.raises(Fenced):
        move(store, 0, "a", "b")
    assert [load(store, partition) for partition in (1, 2)] == ["a", "a"]


def test_parent_that_is_still_there_keeps_its_cursor(store):
    """A parent that the feed still lists is not read again from its start."""
    load(store, 0, start="a")
    inherit(store, {1: [0]}, remaining=[0, 1])
    assert [load(store, partition) for partition in (0, 1)] == ["a", "a"]


def test_heirs_see_a_commit_that_was_under_way(postgresql):
    """An inheritance waits for a commit of the parent that has begun, and takes its cursor."""
    store = CursorStore(postgresql)
    with postgresql.begin() as connection:
        store.create_tables(connection)
    load(store, 0, start="a")
    with postgresql.connect() as connection:
        connection.execute(store.move("billing", 0, "a", "b"))
        heirs = threading.Thread(target=inherit, args=(store, {1: [0]}))
        heirs.start()
        heirs.join(timeout=0.3)
        assert heirs.is_alive()
        connection.commit()
        heirs.join()
    assert load(store, 1) == "b"


def test_tables_are_created_by_many_at_once(database_url):
    """Processes that start at the same moment do not trip over each other."""
    errors = []

    def create():
        engine = create_engine(database_url)
        try:
            with engine.begin() as connection:
                CursorStore(engine).create_tables(connection)
        except Exception as error:  # noqa: BLE001 - any would be the defect
            errors.append(error)
        engine.dispose()

    threads = [threading.Thread(target=create) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
