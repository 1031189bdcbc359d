"""Where a consumer stands, and who may move its cursor, on every database."""

import threading
from dataclasses import replace

import pytest
from harness.statements import execute
from harness.stores import (
    NAME,
    at,
    beside,
    call,
    claim,
    cursor,
    end,
    enter,
    is_refused_for_now,
    kept_waiting,
    load,
    move,
    new_store,
    outcome,
)
from sqlalchemy import MetaData, column, create_engine, inspect, table, text

from zeroeventhub import FIRST, LAST, CursorStore, cursor_tables
from zeroeventhub.errors import ConfigurationError, Fenced, LeaseLost


def test_new_consumer_stands_at_its_start(store):
    """A consumer without a cursor gets the start, which stays whatever is asked later."""
    place = load(store, 0)
    assert (place.cursor, place.epoch) == (FIRST, 0)
    assert load(store, 0, start="7") == place
    assert load(store, 1, start="7") == replace(place, cursor="7")
    assert cursor(store, 1) == "7"


def test_new_consumer_starts_everywhere_at_once(any_store):
    """A new consumer starts in all partitions where it wants to, and later ones at their start."""
    load(any_store, 0, name="audit")
    for partitions in ([0, 1], [0, 1, 2]):
        call(any_store, any_store.begin, partitions, LAST)
    assert [cursor(any_store, partition) for partition in range(3)] == [LAST, LAST, FIRST]


def test_start_written_by_a_rival_is_seen_in_an_older_snapshot(mariadb):
    """Where a transaction reads one snapshot, it still finds the row that kept it from writing."""
    store = new_store(mariadb)
    with mariadb.begin() as connection:
        store.load(connection, NAME, 0)
        load(store, 1, start="7")
        assert store.load(connection, NAME, 1, start="8").cursor == "7"


def test_cursor_moves_only_from_where_it_stands(store):
    """A move from another place, or to a place without a row, is fenced, and moves nothing."""
    first = load(store, 0)
    move(store, 0, first, "a")
    place = replace(first, cursor="a")
    for partition, wrong in [
        (0, first),
        (0, replace(first, cursor="A")),
        (0, replace(first, cursor="a ")),
        (0, replace(place, epoch=1)),
        (1, first),
    ]:
        for new in ("b", wrong.cursor):
            with pytest.raises(Fenced):
                move(store, partition, wrong, new)
    assert load(store, 0) == place
    move(store, 0, place, "a")
    assert load(store, 0) == place


@pytest.mark.parametrize("name", ["BILLING", "bílling", "x" * 200])
def test_consumers_are_told_apart(store, name):
    """A consumer's name is compared character by character, and held to its last one."""
    load(store, 0, start="a")
    load(store, 0, start="b", name=name)
    assert cursor(store, 0) == "a"
    assert call(store, store.cursors, name=name) == {0: "b"}


def test_entering_waits_for_a_commit_under_way(leveled_store):
    """A process that enters finds what the one before it was about to commit, or tries again."""
    store = leveled_store
    place = load(store, 0)
    claim(store, "two", [0])
    with kept_waiting(store, enter, store, 0, "two") as (connection, found):
        connection.execute(store.move(NAME, 0, place, "a"))
    if not is_refused_for_now(found[0]):
        assert found == [replace(place, cursor="a", epoch=1)]
    assert enter(store, 0, "two").cursor == "a"


def test_one_of_two_commits_stands(store):
    """Of two processes that commit one page at the same moment, one does, whatever they see."""
    is_server = store.engine.dialect.name != "sqlite"
    store = at(store, "REPEATABLE READ" if is_server else "SERIALIZABLE")
    load(store, 0)
    barrier = threading.Barrier(2, timeout=10)

    def commit(new):
        with store.engine.begin() as connection:
            place = store.load(connection, NAME, 0)
            barrier.wait()
            store.advance(connection, NAME, 0, place, new)
        return new

    results = [outcome(future) for future in [beside(commit, new) for new in "ab"]]
    refused = [one for one in results if isinstance(one, Fenced) or is_refused_for_now(one)]
    assert len(refused) == 1
    assert cursor(store, 0) in results


def test_partition_has_ended_until_its_cursor_moves(store):
    """That a partition was read to its end is known until it goes on, and fenced like a move."""
    first = load(store, 0)
    load(store, 1)
    end(store, 0, first)
    assert claim(store, "one", [1]).ended == {0}
    for wrong in (replace(first, cursor="a"), replace(first, epoch=1)):
        with pytest.raises(Fenced):
            end(store, 1, wrong)
    assert [standing.ended for standing in call(store, store.standings)] == [True, False]
    move(store, 0, first, "a")
    assert claim(store, "one", [1]).ended == frozenset()
    end(store, 0, replace(first, cursor="a"))
    move(store, 0, replace(first, cursor="a"), "a")
    assert claim(store, "one", [1]).ended == {0}


def test_child_is_not_entered_before_its_parents_end(any_store):
    """A child waits for its parent, also after a reset, and the refusal fences no process."""
    store = any_store
    claim(store, "one", (0, 2))
    with pytest.raises(LeaseLost, match="waits for partition 0"):
        enter(store, 2, "one", after=0)
    end(store, 0, enter(store, 0, "one"))
    entered = enter(store, 2, "one", after=0)
    assert entered.epoch == 1
    call(store, store.reset)
    with pytest.raises(LeaseLost, match="waits for partition 0"):
        enter(store, 2, "one", after=0)
    assert load(store, 2) == replace(entered, epoch=2)


def test_tables_are_created_by_many_at_once(database_url):
    """Processes that start at the same moment do not trip over each other."""

    def create():
        engine = create_engine(database_url)
        try:
            new_store(engine)
        finally:
            engine.dispose()

    assert [outcome(future) for future in [beside(create) for _ in range(8)]] == [None] * 8


def test_tables_may_lie_in_a_schema(postgresql):
    """A store with tables of its own looks for them where they were declared, and works there."""
    execute(postgresql, "CREATE SCHEMA mine")
    store = CursorStore(postgresql, tables=cursor_tables(MetaData(), schema="mine"))
    with postgresql.begin() as connection, pytest.raises(ConfigurationError, match="no table mine"):
        store.check_tables(connection)
    with postgresql.begin() as connection:
        store.create_tables(connection)
    move(store, 0, load(store, 0), "a")
    assert cursor(store, 0) == "a"
    assert inspect(postgresql).get_table_names() == []


def test_table_of_an_older_version_is_named(engine):
    """A table of cursors without epochs is refused by what it lacks, and keeps its cursors."""
    store, quote = CursorStore(engine), engine.dialect.identifier_preparer.quote
    with engine.begin() as connection:
        connection.execute(
            text(
                f"CREATE TABLE zeroeventhub_cursors (consumer VARCHAR(200), {quote('partition')} "
                f"INTEGER, {quote('cursor')} TEXT, updated_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP)"
            )
        )
        old = table("zeroeventhub_cursors", *map(column, ["consumer", "partition", "cursor"]))
        connection.execute(old.insert().values([NAME, 0, "a"]))
    with engine.begin() as connection, pytest.raises(ConfigurationError) as refusal:
        store.create_tables(connection)
    added = str(refusal.value).partition("add the columns ")[2].partition(";")[0].split(", ")
    with engine.begin() as connection:
        for one in added:
            connection.execute(text(f"ALTER TABLE zeroeventhub_cursors ADD COLUMN {one}"))
        store.create_tables(connection)
    place = load(store, 0)
    assert (place.cursor, place.epoch) == ("a", 0)
