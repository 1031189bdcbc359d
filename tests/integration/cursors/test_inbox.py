"""The inbox on every database: what was seen is told from what was not, exactly."""

import threading

import pytest
from harness.stores import NAME, at, call, empty_store, new_store
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from zeroeventhub.cursors.transience import is_transient
from zeroeventhub.errors import StoreUnavailable

SERVERS = [
    (database, level)
    for database in ("postgresql", "mariadb")
    for level in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
]


@pytest.fixture
def store(shop_engine):
    """A store that holds nothing, on each database in turn."""
    return empty_store(shop_engine)


def unseen(store, ids, *, partition=0, name=NAME):
    """Note ids, and return those that are new."""
    return call(store, store.inbox.unseen, partition, ids, name=name)


def test_event_is_new_once(store):
    """An id is new once for a consumer, by whatever partition it comes, and within a page."""
    assert unseen(store, ["a", "b", "a"]) == {"a", "b"}
    assert unseen(store, ["b", "c"]) == {"c"}
    assert unseen(store, ["a", "d"], partition=1) == {"d"}
    assert unseen(store, ["a"], name="audit") == {"a"}
    assert unseen(store, []) == set()


def test_event_that_was_rolled_back_is_new(store):
    """An id is noted with the effects of its event, or not at all."""
    with store.engine.connect() as connection:
        assert store.inbox.unseen(connection, NAME, 0, ["a"]) == {"a"}
        assert store.inbox.unseen(connection, NAME, 0, ["a"]) == set()
        connection.rollback()
    assert unseen(store, ["a"]) == {"a"}


def test_ids_are_told_apart(store):
    """Ids of any length and any characters are themselves, and never another one."""
    long = "x" * 100_000
    digest = "a" * 64
    ids = [
        "a",
        "A",
        "a ",
        " a",
        "ä",
        "a\u0308",
        "a\0",
        "",
        "\ud800",
        "\udfff",
        "🎉",
        long,
        long[1:],
    ]
    ids += [digest, digest[1:], "'", "%s", ":a"]
    for number in range(len(ids)):
        assert unseen(store, ids[: number + 1]) == {ids[number]}


def test_thousands_are_noted_at_once(store):
    """A page is no more than a database takes in one statement."""
    ids = list(map(str, range(5000)))
    assert len(unseen(store, ids[:3000])) == 3000
    assert unseen(store, ids) == set(ids[3000:])


def test_old_ids_are_forgotten(store):
    """What is older than so many days goes; what is not, and other consumers', stays."""
    unseen(store, ["old"])
    unseen(store, ["old"], name="audit")
    inbox = store.tables.inbox
    with store.engine.begin() as connection:
        connection.execute(update(inbox).values(seen_at=inbox.c.seen_at - 3 * 86400))
    unseen(store, ["new"])
    assert call(store, store.inbox.prune, days=3.1) == 0
    assert call(store, store.inbox.prune, days=2.9) == 1
    assert unseen(store, ["old", "new"]) == {"old"}
    assert unseen(store, ["old"], name="audit") == set()


@pytest.mark.parametrize(("database", "level"), SERVERS)
def test_one_of_two_partitions_applies_an_event(request, database, level):
    """An event that comes by two partitions at once is new in one, and the other tries again."""
    store = at(new_store(request.getfixturevalue(database)), level)
    results = []

    def note():
        try:
            results.append(unseen(store, ["a", "b"], partition=1))
        except Exception as error:  # noqa: BLE001 - which one is looked at below
            results.append(error)

    with store.engine.connect() as connection:
        assert store.inbox.unseen(connection, NAME, 0, ["b", "c"]) == {"b", "c"}
        thread = threading.Thread(target=note)
        thread.start()
        thread.join(timeout=0.3)
        connection.commit()
        thread.join()
    (result,) = results
    if result != {"a"}:
        assert is_transient(result)
        assert unseen(store, ["a", "b"], partition=1) == {"a"}


def test_event_of_a_rival_is_found_in_an_older_snapshot(mariadb):
    """Where a transaction reads one snapshot, an id that came since is not taken for new."""
    store = new_store(mariadb)
    with mariadb.connect() as connection:
        store.inbox.unseen(connection, NAME, 0, ["x"])
        unseen(store, ["a"], partition=1)
        with pytest.raises(StoreUnavailable):
            store.inbox.unseen(connection, NAME, 0, ["a"])
        connection.rollback()


def test_inbox_is_a_set(store):
    """Over any pages, what is new is what no page before has brought."""

    @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.lists(st.text(max_size=2), max_size=8), max_size=6), st.integers())
    def check(pages, number):
        seen = set()
        name = f"c{number}"[:200]
        call(store, store.reset, name=name)
        for page in pages:
            assert unseen(store, page, name=name) == set(page) - seen
            seen |= set(page)

    check()
