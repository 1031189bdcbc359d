"""What becomes of every kind of statement."""

import pytest
from harness.log import LOG, append, connected
from harness.ordering_table import (
    ALL,
    GATED,
    OBSERVED,
    OBSERVED_MARIADB,
    ON_SERVERS,
    ON_SQLITE,
    SEQUENCED,
    SEQUENCED_MARIADB,
    SEQUENCING,
    SINGLE_WRITER,
    WATCHING,
    for_each,
    shows,
)
from sqlalchemy import MetaData

from zeroeventhub import FIRST
from zeroeventhub.errors import Diverged, Trimmed

# COPY, LOAD DATA, INSERT … SELECT


def assert_bulk(log, write):
    """Show that what is written in bulk holds back others, and is held back by others."""
    assert log.news() == []
    log.assert_order_of(write)
    with log.engine.connect() as slow:
        append(slow, 4)
        with log.engine.begin() as connection:
            write(connection)
        early = log.news()
        slow.commit()
    late = log.news()
    assert (early, late) == (([1], [4]) if log.ordering == "sequenced" else ([], [4, 1]))


@shows("COPY, LOAD DATA, INSERT … SELECT", OBSERVED, GATED, SEQUENCED)
def test_copy_is_like_any_insert(log):
    """Events that are written by COPY have their place among all others."""

    def copy(connection):
        with connection.connection.cursor().copy("COPY log (n) FROM STDIN") as lines:
            lines.write_row([1])

    assert_bulk(log, copy)


@shows("COPY, LOAD DATA, INSERT … SELECT", OBSERVED_MARIADB, SEQUENCED_MARIADB)
def test_load_data_is_like_any_insert(bare, tmp_path):
    """Events that are written by LOAD DATA have their place among all others."""
    if bare.count("SELECT @@global.local_infile") == 0:
        pytest.skip("local_infile is off on this server")
    file = tmp_path / "events"
    file.write_text("1\n")
    load = f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE log (n)"
    with connected(bare.engine.url, local_infile=True) as engine:
        bare.engine = engine
        bare.publish()
        assert_bulk(bare, lambda connection: connection.exec_driver_sql(load))


@shows("COPY, LOAD DATA, INSERT … SELECT", *WATCHING, SEQUENCED, SEQUENCED_MARIADB)
def test_insert_select_is_like_any_insert(log):
    """Events that are written by INSERT … SELECT have their place among all others."""
    log.run("CREATE TABLE originals (n integer)", "INSERT INTO originals VALUES (1)")
    copy = "INSERT INTO log (n) SELECT n FROM originals"
    assert_bulk(log, lambda connection: connection.exec_driver_sql(copy))


@shows("COPY, LOAD DATA, INSERT … SELECT", *ON_SQLITE)
def test_bulk_in_sqlite_is_like_any_insert(log):
    """Events that are written in bulk are seen in the order in which they were written."""
    log.run("CREATE TABLE originals (n integer)", "INSERT INTO originals VALUES (1), (2), (3)")
    log.write(0)
    log.run("INSERT INTO log (n) SELECT n FROM originals ORDER BY n DESC")
    log.write(4)
    assert log.news() == [0, 3, 2, 1, 4]


# ON CONFLICT, IGNORE, REPLACE

UPSERTS = {
    "postgresql": {
        "ignored": "INSERT INTO log (n) VALUES (0), (1) ON CONFLICT DO NOTHING",
        "updated": "INSERT INTO log (n) VALUES (0), (1) ON CONFLICT (n) DO UPDATE SET n = log.n",
    },
    "mariadb": {
        "ignored": "INSERT IGNORE INTO log (n) VALUES (0), (1)",
        "updated": "INSERT INTO log (n) VALUES (0), (1) ON DUPLICATE KEY UPDATE n = log.n",
    },
    "sqlite": {
        "ignored": "INSERT OR IGNORE INTO log (n) VALUES (0), (1)",
        "updated": "INSERT INTO log (n) VALUES (0), (1) ON CONFLICT (n) DO UPDATE SET n = log.n",
    },
}


def publish_unique(log):
    """Publish a log in which no number stands twice, with event 0."""
    LOG.create(log.engine)
    log.run("CREATE UNIQUE INDEX log_n ON log (n)")
    log.publish()
    if log.database != "sqlite":
        # At MySQL's default everybody waits for a writer who has met what was there.
        log.engine = log.engine.execution_options(isolation_level="READ COMMITTED")
    log.assert_news(0)


@pytest.mark.parametrize("known", ["ignored", "updated"])
@shows("ON CONFLICT, IGNORE, REPLACE", *ALL)
def test_upsert_is_like_any_insert(bare, known):
    """Of the rows of an upsert those that are new are events, and those that are known are not."""
    publish_unique(bare)
    statement = UPSERTS[bare.database][known]
    if bare.database == "sqlite":
        bare.run(statement)
        bare.write(2)
        assert bare.news() == [1, 2]
    else:
        bare.assert_order_of(lambda slow: slow.exec_driver_sql(statement))


@shows("ON CONFLICT, IGNORE, REPLACE", OBSERVED_MARIADB)
def test_replace_that_draws_a_number_is_like_any_insert(bare):
    """A row that takes the place of another by REPLACE draws a number, and is in order."""
    publish_unique(bare)
    # Only what lies between a row that is replaced and the next is locked for others.
    bare.assert_news(1)
    bare.assert_order_of(lambda slow: slow.exec_driver_sql("REPLACE INTO log (n) VALUES (0)"), 0)
    assert bare.everything() == [1, 0, 2]


@shows("ON CONFLICT, IGNORE, REPLACE", *SEQUENCING)
def test_row_replaced_is_a_new_event(log, case):
    """A row that takes the place of another by its key is a new event, and the old one is gone."""
    log.assert_news(0, 1)
    if case == SEQUENCED:
        log.run("DELETE FROM log WHERE id = 1", "INSERT INTO log (id, n) VALUES (1, 9)")
    else:
        log.run("REPLACE INTO log (id, n) VALUES (1, 9)")
    log.write(2)
    assert log.news() == [9, 2]
    assert log.everything() == [1, 9, 2]


@shows("ON CONFLICT, IGNORE, REPLACE", SINGLE_WRITER)
def test_row_replaced_has_the_old_number(log):
    """A row that takes the place of another by its key has its number, behind every cursor."""
    log.assert_news(0, 1)
    log.run("INSERT OR REPLACE INTO log (id, n) VALUES (1, 9)")
    log.assert_news(2)
    assert log.everything() == [9, 1, 2]


# UPDATE, DELETE, TRUNCATE


def as_mutable(log):
    """Let a consumer go on with the feed that only compares numbers."""
    log.feed = log.source(mutable=True).bind(log.engine)


def assert_gone(log, error=Diverged):
    """Show that the consumer's cursor is refused, by the feed and by that of a new process."""
    for feed in (log.feed, log.restarted()):
        log.feed = feed
        with pytest.raises(error) as gone:
            log.news()
        assert gone.value.status == 410


@shows("UPDATE of events", *ALL, later=ON_SERVERS)
def test_update_is_not_seen_behind_a_cursor(log):
    """A consumer does not hear of the change of an event that it has read; if it was the last
    one, the cursor is refused, unless events may change.
    """
    log.assert_news(0, 1, 2)
    log.run("UPDATE log SET n = n + 10 WHERE n < 2")
    assert log.news() == []
    assert log.everything() == [10, 11, 2]
    log.run("UPDATE log SET n = 12 WHERE n = 2")
    assert_gone(log)
    as_mutable(log)
    assert log.news() == []
    log.assert_news(3)
    assert log.everything() == [10, 11, 12, 3]


@shows("DELETE of events", *ALL, later=ON_SERVERS)
def test_delete_keeps_cursors_of_others_good(log):
    """Events that are deleted are gone, and no event behind them is skipped for it."""
    log.assert_news(0, 1, 2, 3)
    for deleted, left in (("n = 1", [0, 2, 3]), ("n = 0", [2, 3])):
        log.run(f"DELETE FROM log WHERE {deleted}")
        assert log.news() == []
        # The next process knows as much as the one that has seen them all.
        log.feed = log.restarted()
        assert log.news() == []
        assert log.everything() == left
    log.assert_news(4)


@shows("DELETE of events", *WATCHING, SINGLE_WRITER, later=WATCHING)
def test_cursor_of_a_deleted_event_is_gone(log):
    """A cursor whose event was deleted is refused; where none before it is left, as trimmed."""
    log.assert_news(0, 1, 2)
    log.run("DELETE FROM log WHERE n = 2")
    assert_gone(log)
    log.write(3)
    assert_gone(log)
    log.run("DELETE FROM log WHERE n < 2")
    assert_gone(log, Trimmed)


@shows("DELETE of events", *ALL, later=WATCHING)
def test_delete_keeps_cursors_good_where_it_is_allowed(log, case):
    """Where events may be deleted, or their positions outlive them, cursors stay good."""
    if case not in SEQUENCING:
        as_mutable(log)
    log.assert_news(0, 1, 2, 3)
    for deleted, left in (("n = 1", [0, 2, 3]), ("n = 3", [0, 2]), ("n < 9", [])):
        log.run(f"DELETE FROM log WHERE {deleted}")
        assert log.news() == []
        assert log.everything() == left
    log.assert_news(4)


TRUNCATE = {
    "postgresql": ["TRUNCATE log RESTART IDENTITY"],
    "mariadb": ["TRUNCATE log"],
    "sqlite": ["DELETE FROM log"],
}


@shows("TRUNCATE, with numbers that start again", *WATCHING)
def test_cursors_from_before_a_truncate_are_gone(log):
    """A cursor is answered with 410, beyond the new end and when the new end is beyond it."""
    log.assert_news(0, 1, 2)
    log.run(*TRUNCATE[log.database])
    log.write(3)
    assert_gone(log)
    assert log.everything() == [3]
    log.write(4, 5)
    assert_gone(log)
    log.write(6)
    assert_gone(log)
    assert log.everything() == [3, 4, 5, 6]


@shows("TRUNCATE, with numbers that start again", *WATCHING, later=(GATED,))
def test_mutable_feed_compares_numbers_alone(log):
    """Where events may change, a cursor is refused until the new end is beyond it."""
    as_mutable(log)
    log.assert_news(0, 1, 2)
    log.run(*TRUNCATE[log.database])
    log.write(3)
    for _ in range(2):
        with pytest.raises(Diverged):
            log.news()
        as_mutable(log)
    log.write(4, 5, 6)
    assert log.news() == [6]


@shows("TRUNCATE, with numbers that start again", *SEQUENCING)
def test_cursors_outlive_a_truncate(log):
    """Events that come with numbers from before a TRUNCATE are new ones behind every cursor."""
    log.assert_news(0, 1, 2)
    again = ["DELETE FROM sqlite_sequence WHERE name = 'log'"] if log.database == "sqlite" else []
    log.run(*TRUNCATE[log.database], *again)
    assert log.news() == []
    log.write(3, 4)
    assert log.count("SELECT min(id) FROM log") == 1
    assert log.news() == [3, 4]
    assert log.everything() == [3, 4]


@shows("TRUNCATE, with numbers that start again", SINGLE_WRITER)
def test_numbers_of_sqlite_do_not_start_again(log):
    """The first event in an emptied table of SQLite has the number behind the last."""
    log.assert_news(0, 1, 2)
    log.run(*TRUNCATE[log.database])
    assert_gone(log, Trimmed)
    log.write(3)
    assert log.count("SELECT min(id) FROM log") == 4
    assert_gone(log, Trimmed)
    as_mutable(log)
    assert log.news() == [3]


# numbers handed in by a client, and history


@shows("a number handed in by a client", OBSERVED, OBSERVED_MARIADB, SINGLE_WRITER)
def test_number_handed_in_is_not_seen_behind_a_cursor(log):
    """A row that is given a low number by a client is passed over by a consumer beyond it."""
    log.write(0, 1, 2)
    log.run("DELETE FROM log WHERE id = 2")
    assert log.news() == [0, 2]
    log.run("INSERT INTO log (id, n) VALUES (2, 9)")
    assert log.news() == []
    assert log.everything() == [0, 9, 2]


@for_each(*ALL)
def test_history_is_loaded_under_its_own_numbers_before_the_first_reading(bare):
    """History that is loaded before the feed is there comes first, and new events follow it."""
    LOG.create(bare.engine)
    bare.run("INSERT INTO log (id, n) VALUES (100, 0), (101, 1)")
    if bare.database == "postgresql":
        bare.run("SELECT setval('log_id_seq', 101)")
    bare.publish()
    bare.write(2, 3)
    assert bare.news() == [0, 1, 2, 3]


OTHER = LOG.to_metadata(MetaData(), name="other")


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
@for_each(*ALL, later=ON_SQLITE)
def test_change_is_in_all_of_its_feeds_or_in_none(bare, outcome):
    """A transaction that writes to two feeds is seen in both or in neither, and holds back each."""
    bare.publish(OTHER)
    other = bare.feed
    bare.publish()
    assert (bare.feed.head(), other.head()) == (0, 0)
    with bare.engine.connect() as slow:
        append(slow, 0)
        slow.exec_driver_sql("INSERT INTO other (n) VALUES (0)")
        if bare.database != "sqlite":
            with bare.engine.begin() as quick:
                quick.exec_driver_sql("INSERT INTO other (n) VALUES (1)")
            early = [1] if bare.ordering == "sequenced" else []
            assert [event.data["n"] for event in other.read(0, FIRST, 9).events] == early
        getattr(slow, outcome)()
    expected = [0] if outcome == "commit" else []
    assert bare.news() == expected
    seen = {event.data["n"] for event in other.read(0, FIRST, 9).events}
    assert seen == {*expected, *([] if bare.database == "sqlite" else [1])}
