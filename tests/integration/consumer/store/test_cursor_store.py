"""Where a consumer stands, and who may move its cursor, on every database."""

import threading
from dataclasses import replace
from functools import partial

import pytest
from harness.statements import scalars
from harness.stores import (
    LOCK_WAITS,
    NAME,
    advance,
    at,
    beside,
    call,
    claim,
    cursor,
    end,
    enter,
    expire,
    fail,
    inherit,
    is_refused_for_now,
    kept_waiting,
    load,
    move,
    new_store,
    outcome,
    progress,
    unseen,
)
from harness.waiting import DEADLINE, until
from sqlalchemy.exc import DBAPIError

from zeroeventhub import FIRST, LAST, Event
from zeroeventhub.consumer.steps import Place
from zeroeventhub.databases.error_codes import is_transient
from zeroeventhub.errors import (
    ConfigurationError,
    Fenced,
    LeaseLost,
    StoreUnavailable,
    TokenChanged,
)


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
        store.advance(connection, NAME, 0, place, "a")
    if not is_refused_for_now(found[0]):
        assert found == [replace(place, cursor="a", epoch=1)]
    assert enter(store, 0, "two").cursor == "a"


def test_one_of_two_commits_stands(store):
    """Of two processes that commit one page at the same moment, one does, whatever they see."""
    is_server = store.engine.dialect.name != "sqlite"
    store = at(store, "REPEATABLE READ" if is_server else "SERIALIZABLE")
    load(store, 0)
    barrier = threading.Barrier(2, timeout=DEADLINE)

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


def test_heirs_start_where_their_parent_stood(store):
    """Every heir takes the nearest parent's cursor, and one that has its own keeps it."""
    for partition, start in [(0, "old"), (1, "near"), (4, "own")]:
        load(store, partition, start=start)
    inherit(store, {2: [1, 0], 3: [1], 4: [0], 5: [9]})
    assert [cursor(store, heir) for heir in (2, 3, 4, 5)] == ["near", "near", "own", FIRST]


def test_partition_that_was_taken_over_is_not_started_again(store):
    """A feed that still shows a parent repeats no event of it, until it is an heir of its heir."""
    place = load(store, 0, start="a")
    inherit(store, {1: [0], 2: [0]})
    with pytest.raises(TokenChanged):
        load(store, 0)
    with pytest.raises(Fenced):
        move(store, 0, place, "b")
    assert call(store, store.cursors) == {1: "a", 2: "a"}
    move(store, 1, load(store, 1), "b")
    inherit(store, {1: [0], 2: [0]})
    assert call(store, store.cursors) == {1: "b", 2: "a"}
    inherit(store, {0: [1]})
    assert load(store, 0) == replace(place, cursor="b", epoch=2)
    with pytest.raises(Fenced):
        move(store, 0, replace(place, cursor="b"), "c")


def test_heirs_see_a_commit_that_was_under_way(store):
    """An inheritance waits for a commit of the parent that has begun, and takes its cursor."""
    place = load(store, 0, start="a")
    with kept_waiting(store, inherit, store, {1: [0]}) as (connection, results):
        store.advance(connection, NAME, 0, place, "b")
    assert results == [None]
    assert cursor(store, 1) == "b"


@pytest.mark.parametrize("server", ["postgresql", "mariadb"])
def test_heirs_take_no_cursor_of_an_older_snapshot(request, server):
    """A transaction that reads an old snapshot hands the newest cursor over, or tries again."""
    store = at(new_store(request.getfixturevalue(server)), "REPEATABLE READ")
    place = load(store, 0, start="a")
    with store.engine.connect() as connection:
        store.cursors(connection, NAME)
        move(store, 0, place, "b")
        try:
            store.inherit(connection, NAME, {1: [0]}, [1])
            connection.commit()
        except DBAPIError as error:
            assert is_transient(error)  # noqa: PT017 - or there is none
            connection.rollback()
            inherit(store, {1: [0]})
    assert cursor(store, 1) == "b"


def test_heirs_wait_for_lanes_that_are_half_done(store):
    """A cursor after which events are applied already is not handed over, or they would repeat."""
    place = load(store, 0, start="a")
    advance(store, place, 1, 0, 3)
    inherit(store, {1: [0]}, remaining=[0, 1])
    call(store, store.reset, [1], "z")
    with pytest.raises(StoreUnavailable, match="zeroeventhub cursors set"):
        inherit(store, {2: [0]}, remaining=[1, 2])
    assert load(store, 0) == place
    move(store, 0, place, "b")
    inherit(store, {2: [0]}, remaining=[1, 2])
    assert cursor(store, 2) == "b"


def test_heirs_get_the_dead_letters(store):
    """Letters of a partition that is gone are due in the first of its heirs."""
    add = store.dead_letters.add
    for partition in (0, 1):
        load(store, partition)
        call(store, add, partition, Event.of(1), key=None, error=ValueError("no"), tries=1)
    inherit(store, {2: [0], 3: [0, 1]}, remaining=[1, 2, 3])
    assert [one.partition for one in call(store, store.dead_letters.letters)] == [2, 1]


def test_operator_sets_a_cursor(store):
    """A cursor is set whether it was there or not, and lanes that counted from it are forgotten."""
    place = load(store, 0)
    advance(store, place, 0, 0, 3)
    end(store, 0, place)
    call(store, store.set, 0, FIRST)
    assert (cursor(store, 0), load(store, 0).epoch) == (FIRST, 1)
    assert progress(store, place) is None
    assert not call(store, store.standings)[0].ended
    call(store, store.set, 7, LAST)
    assert cursor(store, 7) == LAST
    load(store, 8, start="a")
    inherit(store, {9: [8]})
    call(store, store.set, 8, "b")
    assert cursor(store, 8) == "b"


@pytest.mark.parametrize(
    ("name", "partition", "cursor"),
    [(NAME, 0, ""), (NAME, 0, "x" * 4097), ("x" * 201, 0, "a"), (NAME, 32768, "a")],
)
def test_what_no_consumer_can_have_is_not_set(any_store, name, partition, cursor):
    """A cursor, a name or a partition that cannot be is refused, and nothing is changed."""
    load(any_store, 1)
    with pytest.raises(ConfigurationError):
        call(any_store, any_store.set, partition, cursor, name=name)
    assert [one.partition for one in call(any_store, any_store.standings, name=None)] == [1]


def test_reset_forgets_what_would_keep_events_from_being_applied(store):
    """A consumer that starts again starts as if it were new, and others are left alone."""
    for name in (NAME, "audit"):
        for partition in (0, 1):
            call(store, store.set, partition, "a", name=name)
            unseen(store, [str(partition)], partition, name=name)
    add, here = store.dead_letters.add, load(store, 0)
    for partition in (0, 1):
        call(store, add, partition, Event.of(1), key=None, error=ValueError("no"), tries=1)
        advance(store, load(store, partition), 0, 0, 2, partition=partition)
    end(store, 1, load(store, 1))
    assert call(store, store.reset, [1]) == 1
    assert (cursor(store, 0), cursor(store, 1)) == ("a", FIRST)
    assert not any(one.ended for one in call(store, store.standings))
    assert [one.partition for one in call(store, store.dead_letters.letters)] == [0]
    assert unseen(store, ["0", "1"]) == {"1"}
    assert progress(store, here) == (2, {0: 2})
    assert call(store, store.reset, cursor="b") == 2
    assert (cursor(store, 0), cursor(store, 1)) == ("b", "b")
    assert call(store, store.dead_letters.letters) == []
    assert unseen(store, ["0", "1"]) == {"0", "1"}
    assert progress(store, here) is None
    assert call(store, store.cursors, name="audit") == {0: "a", 1: "a"}
    assert unseen(store, ["0", "1"], name="audit") == set()


def holdings(store, name=NAME):
    """Count what a store has of a consumer, without what is not there."""
    found = call(store, store.holdings, name=name)
    return {table: count for table, count in found.items() if count}


def lived(store, name=NAME):
    """Let a consumer have something of everything but leases; return what it has."""
    advance(store, load(store, 0, start="a", name=name), 0, 0, 2)
    load(store, 1, start="b", name=name)
    end(store, 1, Place("b"))
    unseen(store, ["x", "y"])
    for number in (1, 2):
        letter = (Event.of(number, {"h": "1"}), "k", ValueError("no"), 1)
        call(store, store.dead_letters.add, 0, letter[0], key="k", error=letter[2], tries=1)
    fail(store, load(store, 1, name=name), ValueError("no"), 1, partition=1)
    return {"cursors": 2, "inbox": 2, "dead_letters": 2, "lanes": 1, "failures": 1}


def letters_of(store, name=NAME):
    """Return the dead letters of a consumer, without their ids."""
    found = call(store, store.dead_letters.letters, name=name)
    return [replace(letter, id=0, consumer="") for letter in found]


def test_renamed_consumer_goes_on_where_it_was(store):
    """All that a store has of a consumer gets the new name, and other consumers are left alone."""
    before, letters = lived(store), letters_of(store)
    load(store, 0, start="c", name="audit")
    call(store, store.rename, "invoices")
    assert (holdings(store), holdings(store, "audit")) == ({}, {"cursors": 1})
    assert holdings(store, "invoices") == before
    assert call(store, store.cursors, name="invoices") == {0: "a", 1: "b"}
    assert letters_of(store, "invoices") == letters
    assert call(store, store.standings, name="invoices")[1].error == "ValueError: no"
    assert unseen(store, ["x", "y", "z"], name="invoices") == {"z"}
    with pytest.raises(Fenced):
        move(store, 0, Place("a"), "d")
    for name in ("audit", "", "x" * 201):
        with pytest.raises(ConfigurationError):
            call(store, store.rename, name, name="invoices")
    assert holdings(store, "invoices")["cursors"] == 2


def test_copy_is_a_consumer_of_its_own(store):
    """A copy begins with what the other consumer has, also while that one runs, and both go on by
    themselves.
    """
    before, letters = lived(store), letters_of(store)
    claim(store, "one", [0, 1])
    enter(store, 0, "one")
    call(store, store.copy, "shadow")
    assert holdings(store, "shadow") | {"failures": 1} == before
    assert letters_of(store, "shadow") == letters
    assert [one.ended for one in call(store, store.standings, name="shadow")] == [False, True]
    assert call(store, store.lanes.progress, 0, Place("a"), name="shadow").done == {0: 2}
    call(store, store.advance, 0, Place("a"), "c", name="shadow")
    call(store, store.dead_letters.discard, name="shadow")
    assert call(store, store.cursors) == {0: "a", 1: "b"}
    assert len(letters_of(store)) == 2
    assert unseen(store, ["x"], name="shadow") == set()
    for name in ("shadow", NAME, ""):
        with pytest.raises(ConfigurationError):
            call(store, store.copy, name)


@pytest.mark.parametrize("method", ["copy", "rename"])
def test_consumer_that_is_not_there_has_no_other_name(store, method):
    """A name that is misspelled is refused: the other name would begin at the first event."""
    lived(store)
    with pytest.raises(ConfigurationError, match="no consumer 'biling'"):
        call(store, getattr(store, method), "shadow", name="biling")


@pytest.mark.parametrize("what", ["page", "letter"])
def test_copy_waits_for_what_is_being_committed(leveled_store, what):
    """A copy sees a page, or a dead letter, as before its transaction or as after it: after it."""
    store = leveled_store
    lived(store)

    def act(connection):
        if what == "page":
            store.advance(connection, NAME, 0, Place("a"), "c")
        else:
            store.dead_letters.settle(connection, letter)

    letter = call(store, store.dead_letters.letters)[0]
    with kept_waiting(store, call, store, store.copy, "shadow") as (connection, found):
        act(connection)
    if is_refused_for_now(found[0]):
        call(store, store.copy, "shadow")
    assert call(store, store.cursors, name="shadow") == call(store, store.cursors)
    assert letters_of(store, "shadow") == letters_of(store)


@pytest.mark.parametrize("known", [(0, 1), (0, 1, 2)])
def test_no_partition_is_begun_while_a_consumer_is_copied(store, known):
    """Effects that are copied after the cursors are of no partition that the copy begins anew."""
    lived(store)
    claim(store, "one", known)

    def begin():
        claim(store, "one", [0, 1, 2])
        enter(store, 2, "one")

    with kept_waiting(store, begin) as (connection, _):
        store.copy(connection, NAME, "shadow")
    assert call(store, store.cursors).keys() - call(store, store.cursors, name="shadow") == {2}


def test_copy_that_waited_holds_what_was_begun_meanwhile(postgresql):
    """A partition that is begun while a copy waits for a page of another one waits for the copy."""
    store = new_store(postgresql)
    lived(store)
    claim(store, "one", [0, 1, 2])
    with kept_waiting(store, move, store, 2, Place(FIRST, 1), "c") as (connection, _):
        with store.engine.connect() as page:
            store.advance(page, NAME, 0, Place("a"), "c")
            copying = beside(store.copy, connection, NAME, "shadow")
            waits = LOCK_WAITS["postgresql"]
            until(lambda: any(scalars(store.engine, waits)), "the copy waits for the page")
            assert enter(store, 2, "one") == Place(FIRST, 1)
            page.commit()
        assert outcome(copying) is None
    assert call(store, store.cursors, name="shadow") == {0: "c", 1: "b", 2: FIRST}


def test_nothing_is_left_of_a_forgotten_consumer(store):
    """All that a store has of a consumer is deleted, and other consumers stay as they are."""
    before = lived(store)
    load(store, 0, start="c", name="audit")
    deleted = call(store, store.forget)
    assert {table: count for table, count in deleted.items() if count} == before
    assert (holdings(store), holdings(store, "audit")) == ({}, {"cursors": 1})


def test_consumer_that_runs_is_neither_renamed_nor_forgotten(any_store):
    """A process would begin anew under the old name: it has to end, or its lease to run out."""
    store = any_store
    lived(store)
    claim(store, "one", [0], share=False)
    claim(store, "two", [])
    for owner in ("one", "two"):
        for change in (
            partial(call, store, store.rename, "invoices"),
            partial(call, store, store.forget),
        ):
            with pytest.raises(ConfigurationError, match=f"process '{owner}'"):
                change()
        expire(store, owner)
    assert call(store, store.forget)["cursors"] == 2
    assert holdings(store) == {}


def test_reset_of_an_heir_forgets_events_of_its_parents(any_store):
    """Events that came by a partition that is gone come again, and are then applied again."""
    store = any_store
    load(store, 0, start="a")
    unseen(store, ["x"])
    inherit(store, {1: [0], 2: [0]})
    assert unseen(store, ["x"], 1) == set()
    assert call(store, store.reset, [1]) == 1
    assert unseen(store, ["x"], 1) == {"x"}
    assert call(store, store.reset) == 2
    with pytest.raises(TokenChanged):
        load(store, 0)
