"""The store of cursors on every database: what it writes, and what it refuses."""

import threading

import pytest
from harness.stores import NAME, at, call, claim, empty_store, enter, expire, load, move, new_store
from sqlalchemy import Column, Integer, MetaData, Table, column, create_engine, delete, table, text
from sqlalchemy.exc import DBAPIError

from zeroeventhub import FIRST, LAST, CursorStore, Event
from zeroeventhub._follow import Place
from zeroeventhub.cursors.transience import is_transient
from zeroeventhub.errors import (
    ConfigurationError,
    Fenced,
    LeaseLost,
    StoreUnavailable,
    TokenChanged,
)

LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


@pytest.fixture
def store(shop_engine):
    """A store that holds nothing, on each database in turn."""
    return empty_store(shop_engine)


def inherit(store, heirs, remaining=None):
    """Hand cursors over in a transaction of their own."""
    call(store, store.inherit, heirs, heirs if remaining is None else remaining)


def cursor(store, partition):
    """Return where a consumer stands."""
    return load(store, partition).cursor


def end(store, partition, place):
    """Say that a partition was read to its end."""
    with store.engine.begin() as connection:
        store.confirm(connection.execute(store.end(NAME, partition, place)), NAME, partition)


def advance(store, partition, place, **lane):
    """Let a lane come further."""
    call(store, store.lanes.advance, partition, place, lanes=2, **lane)


def set_aside(store, partition, *, key=None):
    """Write a dead letter."""
    event, error = Event.of({"n": 1}), ValueError("no")
    call(store, store.dead_letters.add, partition, event, key=key, error=error, tries=1)


def test_new_consumer_stands_at_its_start(store):
    """A consumer without a cursor gets the start, which stays whatever is asked later."""
    assert load(store, 0) == Place(FIRST, 0)
    assert cursor(store, 0) == FIRST
    assert load(store, 1, start="7") == Place("7", 0)
    assert load(store, 1, start="8").cursor == "7"


def test_start_written_by_a_rival_is_seen_in_an_older_snapshot(mariadb):
    """Where a transaction reads one snapshot, it still finds the row that kept it from writing."""
    store = new_store(mariadb)
    with mariadb.begin() as connection:
        store.load(connection, NAME, 0)
        load(store, 1, start="7")
        assert store.load(connection, NAME, 1, start="8").cursor == "7"


def test_cursor_moves_only_from_where_it_stands(store):
    """A move from another place, or to a place without a row, is fenced."""
    load(store, 0)
    move(store, 0, Place(FIRST), "a")
    for partition, place in [
        (0, Place(FIRST)),
        (0, Place("A")),
        (0, Place("a ")),
        (0, Place("a", 1)),
        (1, Place(FIRST)),
    ]:
        with pytest.raises(Fenced):
            move(store, partition, place, "b")
    assert load(store, 0) == Place("a", 0)


def test_process_that_has_lost_its_lease_is_fenced(store):
    """Once another process has entered, a page of the one before it cannot be committed."""
    claim(store, "one", [0])
    before = enter(store, 0, "one")
    expire(store, "one")
    claim(store, "two", [0])
    after = enter(store, 0, "two")
    assert (before.cursor, after.cursor) == (FIRST, FIRST)
    with pytest.raises(Fenced):
        move(store, 0, before, "a")
    with pytest.raises(LeaseLost):
        enter(store, 0, "one")
    move(store, 0, after, "b")
    with pytest.raises(Fenced):
        move(store, 0, Place("b", before.epoch), "c")
    assert load(store, 0) == Place("b", after.epoch)


def test_operator_fences_even_where_the_cursor_comes_back(store):
    """A cursor that was moved, and was then put where it was, is not the one that was read."""
    load(store, 0)
    place = load(store, 0)
    move(store, 0, place, "a")
    call(store, store.set, 0, place.cursor)
    with pytest.raises(Fenced):
        move(store, 0, place, "b")
    again = load(store, 0)
    call(store, store.reset)
    with pytest.raises(Fenced):
        move(store, 0, again, "b")


def test_entering_needs_the_lease(store):
    """Only who holds a lease by the database's clock enters, and nobody is fenced otherwise."""
    with pytest.raises(LeaseLost):
        enter(store, 0, "one")
    claim(store, "one", [0, 1])
    first = enter(store, 0, "one")
    for owner, partition in [("two", 0), ("ONE", 0), ("one", 2)]:
        with pytest.raises(LeaseLost):
            enter(store, partition, owner)
    expire(store, "one")
    with pytest.raises(LeaseLost):
        enter(store, 0, "one")
    assert load(store, 0) == first
    claim(store, "one", [0, 1])
    assert enter(store, 0, "one") == Place(FIRST, first.epoch + 1)


def test_partition_that_was_handed_over_is_not_entered(store):
    """Nobody enters a partition that others have taken over."""
    load(store, 0, start="a")
    inherit(store, {1: [0]})
    claim(store, "one", [0, 1])
    with pytest.raises(TokenChanged):
        enter(store, 0, "one")
    assert enter(store, 1, "one").cursor == "a"


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
@pytest.mark.parametrize("level", LEVELS)
def test_entering_waits_for_a_commit_under_way(request, database, level):
    """Who enters finds what the process before it was about to commit, or has to try again."""
    store = at(new_store(request.getfixturevalue(database)), level)
    load(store, 0)
    claim(store, "two", [0])
    found = []

    def come_in():
        try:
            found.append(enter(store, 0, "two"))
        except Exception as error:  # noqa: BLE001 - which one is looked at below
            found.append(error)

    with store.engine.connect() as connection:
        connection.execute(store.move(NAME, 0, Place(FIRST), "a"))
        thread = threading.Thread(target=come_in)
        thread.start()
        thread.join(timeout=0.3)
        assert thread.is_alive()
        connection.commit()
        thread.join()
    if found[0] != Place("a", 1):
        assert is_transient(found[0])
    assert enter(store, 0, "two").cursor == "a"


@pytest.mark.parametrize("level", LEVELS)
def test_one_of_two_commits_stands(store, level):
    """Of two processes that commit one page at the same moment, one does, whatever they see."""
    if store.engine.dialect.name == "sqlite":
        level = "SERIALIZABLE"
    store = at(store, level)
    load(store, 0)
    barrier, results = threading.Barrier(2), []

    def commit(new):
        try:
            with store.engine.begin() as connection:
                place = store.load(connection, NAME, 0)
                barrier.wait()
                store.confirm(connection.execute(store.move(NAME, 0, place, new)), NAME, 0)
            results.append(new)
        except Exception as error:  # noqa: BLE001 - which one is looked at below
            assert isinstance(error, Fenced) or is_transient(error)  # noqa: PT017 - in a thread

    threads = [threading.Thread(target=commit, args=(new,)) for new in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [cursor(store, 0)]


def test_partition_ends_until_its_cursor_moves(store):
    """That a partition was read to its end is known until it goes on, and fenced like a move."""
    load(store, 0)
    load(store, 1)
    end(store, 0, Place(FIRST))
    assert claim(store, "one", [1]).ended == {0}
    for place in (Place("a"), Place(FIRST, 1)):
        with pytest.raises(Fenced):
            end(store, 1, place)
    assert [standing.ended for standing in call(store, store.standings)] == [True, False]
    move(store, 0, Place(FIRST), "a")
    assert claim(store, "one", [1]).ended == frozenset()
    end(store, 0, Place("a"))
    move(store, 0, Place("a"), "a")
    assert claim(store, "one", [1]).ended == {0}
    call(store, store.set, 0, "a")
    assert claim(store, "one", [1]).ended == frozenset()
    end(store, 0, load(store, 0))
    call(store, store.reset)
    assert claim(store, "one", [1]).ended == frozenset()


def test_standings_show_who_reads_what(store):
    """An operator sees every place of every consumer, and the leases that hold yet."""
    call(store, store.load, 0, name="audit", start="z")
    load(store, 1, start="a")
    load(store, 0, start="a")
    load(store, 2, start="gone")
    inherit(store, {0: [2]}, remaining=[0, 1])
    claim(store, "one", [0])
    claim(store, "two", [1])
    expire(store, "two")
    with store.engine.connect() as connection:
        found = store.standings(connection)
        of_one = store.standings(connection, NAME)
    assert [(one.consumer, one.partition) for one in of_one] == [(NAME, 0), (NAME, 1)]
    assert [(one.consumer, one.partition, one.cursor, one.owner) for one in found] == [
        ("audit", 0, "z", None),
        (NAME, 0, "a", "one"),
        (NAME, 1, "a", None),
    ]
    assert 25 < found[1].lease_seconds <= 30
    assert found[2].lease_seconds is None
    assert found[0].updated_at.tzinfo is not None
    ages = {round((found[0].updated_at - one.updated_at).total_seconds() / 60) for one in found}
    assert ages == {0}


def test_operator_sets_a_cursor(store):
    """A cursor is set whether it was there or not, and lanes that counted from it are forgotten."""
    load(store, 0)
    advance(store, 0, Place(FIRST), lane=0, before=0, after=3)
    call(store, store.set, 0, FIRST)
    assert load(store, 0) == Place(FIRST, 1)
    assert call(store, store.lanes.progress, 0, Place(FIRST)) is None
    call(store, store.set, 7, LAST)
    assert cursor(store, 7) == LAST
    load(store, 8, start="a")
    inherit(store, {9: [8]})
    call(store, store.set, 8, "b")
    assert cursor(store, 8) == "b"


@pytest.mark.parametrize("wrong", ["", "ä", "a\nb", "x" * 4097])
def test_what_is_no_cursor_is_not_set(store, wrong):
    """Text that no feed can have given as a cursor is refused, and nothing is changed."""
    place = load(store, 0)
    with pytest.raises(ConfigurationError):
        call(store, store.set, 0, wrong)
    with pytest.raises(ConfigurationError):
        call(store, store.reset, cursor=wrong)
    with pytest.raises(ConfigurationError):
        call(store, store.set, 0, "a", name="")
    with pytest.raises(ConfigurationError):
        call(store, store.set, 32768, "a")
    assert load(store, 0) == place


def test_reset_forgets_what_would_keep_events_from_being_applied(store):
    """A consumer that starts again starts as if it were new, and others are left alone."""
    for name in (NAME, "audit"):
        for partition in (0, 1):
            call(store, store.set, partition, "a", name=name)
            call(store, store.inbox.unseen, partition, [str(partition)], name=name)
    for partition in (0, 1):
        set_aside(store, partition)
        advance(store, partition, load(store, partition), lane=0, before=0, after=2)
    assert call(store, store.reset, [1]) == 1
    assert (cursor(store, 0), cursor(store, 1)) == ("a", FIRST)
    assert [one.partition for one in call(store, store.dead_letters.letters)] == [0]
    assert call(store, store.inbox.unseen, 0, ["0", "1"]) == {"1"}
    assert call(store, store.lanes.progress, 0, Place("a")).done == {0: 2}
    assert call(store, store.reset, cursor="b") == 2
    assert (cursor(store, 0), cursor(store, 1)) == ("b", "b")
    assert call(store, store.dead_letters.letters) == []
    assert call(store, store.inbox.unseen, 0, ["0", "1"]) == {"0", "1"}
    assert call(store, store.lanes.progress, 0, Place("a")) is None
    assert call(store, store.cursors, name="audit") == {0: "a", 1: "a"}
    assert call(store, store.inbox.unseen, 0, ["0", "1"], name="audit") == set()


def test_reset_forgets_lanes_that_counted_from_the_same_cursor(store):
    """A reset to where the cursor stands has lanes begin again too."""
    load(store, 0)
    advance(store, 0, Place(FIRST), lane=0, before=0, after=2)
    call(store, store.reset)
    assert call(store, store.lanes.progress, 0, Place(FIRST)) is None


def test_reset_of_an_heir_forgets_events_of_its_parents(store):
    """Events that came by a partition that is gone come again, and are then applied again."""
    load(store, 0, start="a")
    call(store, store.inbox.unseen, 0, ["x"])
    inherit(store, {1: [0], 2: [0]})
    assert call(store, store.inbox.unseen, 1, ["x"]) == set()
    assert call(store, store.reset, [1]) == 1
    assert call(store, store.inbox.unseen, 1, ["x"]) == {"x"}
    assert call(store, store.reset) == 2
    with pytest.raises(TokenChanged):
        load(store, 0)


def test_projection_is_emptied_in_the_transaction_of_the_reset(store):
    """Cursor and projection are of one moment, for who fails on the way and who still reads."""
    projection = Table("totals", MetaData(), Column("n", Integer, primary_key=True))
    projection.metadata.create_all(store.engine)
    place = load(store, 0)

    def apply(place, number):
        with store.engine.begin() as connection:
            result = connection.execute(store.move(NAME, 0, place, f"c{number}"))
            store.confirm(result, NAME, 0)
            connection.execute(projection.insert().values(n=number))

    def count():
        with store.engine.connect() as connection:
            return len(connection.execute(projection.select()).all())

    def rebuild(*, failing=False):
        with store.engine.begin() as connection:
            store.reset(connection, NAME)
            connection.execute(delete(projection))
            if failing:
                raise ConnectionError

    apply(place, 1)
    with pytest.raises(ConnectionError):
        rebuild(failing=True)
    assert (cursor(store, 0), count()) == ("c1", 1)
    rebuild()
    with pytest.raises(Fenced):
        apply(Place("c1"), 2)
    with pytest.raises(Fenced):
        apply(place, 1)
    assert (cursor(store, 0), count()) == (FIRST, 0)


def test_heirs_start_where_their_parent_stood(store):
    """Every heir takes the nearest parent's cursor, and one that has its own keeps it."""
    for partition, start in [(0, "old"), (1, "near"), (4, "own")]:
        load(store, partition, start=start)
    inherit(store, {2: [1, 0], 3: [1], 4: [0], 5: [9]})
    found = [cursor(store, partition) for partition in (2, 3, 4, 5)]
    assert found == ["near", "near", "own", FIRST]


def test_partition_that_was_taken_over_is_not_started_again(store):
    """A feed that still shows a parent, as during a deployment, does not repeat its events."""
    load(store, 0, start="a")
    inherit(store, {1: [0], 2: [0]})
    with pytest.raises(TokenChanged):
        load(store, 0)
    with store.engine.begin() as connection:
        assert store.cursors(connection, NAME) == {1: "a", 2: "a"}
    move(store, 1, Place("a"), "b")
    inherit(store, {1: [0], 2: [0]})
    assert (cursor(store, 1), cursor(store, 2)) == ("b", "a")


def test_partition_that_comes_back_takes_its_heirs_cursor(store):
    """A partition that was gone, and is now an heir of its heir, goes on from there, fenced."""
    load(store, 0, start="a")
    inherit(store, {1: [0]})
    move(store, 1, Place("a"), "b")
    inherit(store, {0: [1]})
    assert load(store, 0) == Place("b", 2)
    with pytest.raises(Fenced):
        move(store, 0, Place("b", 0), "c")


def begin(store, partitions, start):
    """Begin in a transaction of its own."""
    call(store, store.begin, partitions, start)


def test_new_consumer_starts_everywhere_at_once(store):
    """A new consumer starts in all partitions where it wants to, and later ones at their start."""
    begin(store, [0, 1], LAST)
    begin(store, [0, 1, 2], LAST)
    assert [cursor(store, partition) for partition in range(3)] == [LAST, LAST, FIRST]


def test_page_of_a_partition_that_is_gone_is_fenced(store):
    """Who still holds a page of the parent cannot commit it once the heirs have its cursor."""
    load(store, 0, start="a")
    inherit(store, {1: [0], 2: [0]})
    with pytest.raises(Fenced):
        move(store, 0, Place("a"), "b")
    assert [cursor(store, partition) for partition in (1, 2)] == ["a", "a"]


def test_parent_that_is_still_there_keeps_its_cursor(store):
    """A parent that the feed still lists is not read again from its start, and not fenced."""
    load(store, 0, start="a")
    inherit(store, {1: [0]}, remaining=[0, 1])
    assert [load(store, partition) for partition in (0, 1)] == [Place("a"), Place("a")]


def test_heirs_see_a_commit_that_was_under_way(store):
    """An inheritance waits for a commit of the parent that has begun, and takes its cursor."""
    load(store, 0, start="a")
    with store.engine.connect() as connection:
        connection.execute(store.move(NAME, 0, Place("a"), "b"))
        heirs = threading.Thread(target=inherit, args=(store, {1: [0]}))
        heirs.start()
        heirs.join(timeout=0.3)
        assert heirs.is_alive()
        connection.commit()
        heirs.join()
    assert cursor(store, 1) == "b"


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
def test_heirs_take_no_cursor_of_an_older_snapshot(request, database):
    """A transaction that reads an old snapshot hands the newest cursor over, or tries again."""
    store = at(new_store(request.getfixturevalue(database)), "REPEATABLE READ")
    load(store, 0, start="a")
    with store.engine.connect() as connection:
        store.cursors(connection, NAME)
        move(store, 0, Place("a"), "b")
        try:
            store.inherit(connection, NAME, {1: [0]}, [1])
            connection.commit()
        except DBAPIError as error:
            assert is_transient(error)  # noqa: PT017 - or there is none
            connection.rollback()
            inherit(store, {1: [0]})
    assert cursor(store, 1) == "b"


def test_heirs_wait_for_lanes_that_are_half_done(store):
    """A cursor behind which events are applied already is not handed over, or they would repeat."""
    place = load(store, 0, start="a")
    advance(store, 0, place, lane=1, before=0, after=3)
    inherit(store, {1: [0]}, remaining=[0, 1])
    call(store, store.reset, [1], "z")
    with pytest.raises(StoreUnavailable, match="zeroeventhub cursors set"):
        inherit(store, {2: [0]}, remaining=[1, 2])
    assert load(store, 0) == place
    call(store, store.set, 0, "a")
    inherit(store, {2: [0]}, remaining=[1, 2])
    assert cursor(store, 2) == "a"


def test_heirs_get_the_dead_letters(store):
    """Letters of a partition that is gone are due in one that is read."""
    for partition in (0, 1):
        load(store, partition)
        set_aside(store, partition)
    inherit(store, {2: [0], 3: [0, 1]}, remaining=[1, 2, 3])
    assert [one.partition for one in call(store, store.dead_letters.letters)] == [2, 1]


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


def test_table_of_an_older_version_is_named(engine):
    """A table of cursors without epochs is refused by what it lacks, and keeps its cursors."""
    store = CursorStore(engine)
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE zeroeventhub_cursors (consumer VARCHAR(200), "
                f"{engine.dialect.identifier_preparer.quote('partition')} INTEGER, "
                f"{engine.dialect.identifier_preparer.quote('cursor')} TEXT, "
                "updated_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP)"
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
    with engine.begin() as connection:
        store.create_tables(connection)
    assert load(store, 0) == Place("a", 0)
