"""A feed and its archive belong together: what is not of both is neither trimmed nor shown."""

import pytest
from harness.log import LOG, append
from sqlalchemy import create_engine, text

from zeroeventhub import FIRST, TableFeed
from zeroeventhub.archive import Archive
from zeroeventhub.errors import ConfigurationError, Diverged, FeedFailure
from zeroeventhub.publisher.retention import Retention


@pytest.fixture
def engine(tmp_path):
    """An engine of a database of one file, which can be put back."""
    engine = create_engine(f"sqlite:///{tmp_path}/log.db")
    LOG.metadata.create_all(engine)
    with engine.begin() as connection:
        source().install(connection)
    yield engine
    engine.dispose()


def source(archive=None, **options):
    """Return the feed of a log."""
    given = {"data": ["n"], "retention": Retention(), "archive": archive}
    return TableFeed(LOG, **{**given, **options})


def write(engine, *numbers):
    """Append events."""
    with engine.begin() as connection:
        append(connection, *numbers)


def run(engine, *statements):
    """Change the database behind everybody's back."""
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def numbers(feed, cursor=FIRST):
    """Read the numbers of the events behind a cursor."""
    return [event.data["n"] for event in feed.read(0, cursor, 100).events]


def left(engine):
    """Count the events in the table."""
    with engine.connect() as connection:
        return connection.scalar(text("SELECT count(*) FROM log"))


def test_archive_of_another_feed_lets_nothing_be_trimmed(engine, tmp_path):
    """What somebody else has sealed is not what this table has."""
    write(engine, *range(8))
    other = source(Archive(tmp_path / "archive"), data=["id", "n"]).bind(engine)
    assert other.seal().events == 8
    feed = source(Archive(tmp_path / "archive")).bind(engine)
    for options in ({"below": 7}, {"below": 7, "sealed": 8}):
        with pytest.raises(ConfigurationError, match="belongs to another feed"):
            feed.plan_trim(**options)
    assert left(engine) == 8


def test_what_is_not_in_the_archive_stays_whatever_is_said(engine, tmp_path):
    """A feed that has an archive trims nothing that is not in it."""
    write(engine, *range(8))
    feed = source(Archive(tmp_path / "archive")).bind(engine)
    feed.seal()
    write(engine, *range(8, 12))
    assert feed.plan_trim(sealed=11).until == 8


def test_new_history_of_a_restored_table_is_not_trimmed_for_the_old_one(engine, tmp_path):
    """What is sealed is not what was written anew, so that goes on and sealing ends as well."""
    write(engine, *range(8))
    source(Archive(tmp_path / "archive")).bind(engine).seal()
    run(engine, "DELETE FROM log WHERE id > 4", "UPDATE sqlite_sequence SET seq = 4")
    write(engine, *range(100, 108))
    feed = source(Archive(tmp_path / "archive")).bind(engine)
    with pytest.raises(Diverged):
        feed.plan_trim(below=7)
    with pytest.raises(Diverged):
        feed.seal()
    assert numbers(feed) == [0, 1, 2, 3, *range(100, 108)]


def test_restored_table_is_vouched_for_by_itself_and_not_by_its_archive(engine, tmp_path):
    """Also a process that has read the end of the archive looks whether the table has it."""
    write(engine, *range(8))
    feed = source(Archive(tmp_path / "archive")).bind(engine)
    feed.seal()
    with engine.begin() as connection:
        saved = connection.execute(text("SELECT * FROM log")).all()
    write(engine, 8)
    feed.trim(feed.plan_trim(sealed=8))
    assert numbers(feed) == [*range(9)]
    run(
        engine, "DELETE FROM log", "UPDATE zeroeventhub_retention SET trimmed = 0, earliest = '1-0'"
    )
    for row in saved[:4]:
        run(engine, f"INSERT INTO log (id, n) VALUES ({row.id}, {row.n})")
    run(engine, "UPDATE sqlite_sequence SET seq = 4")
    write(engine, *range(100, 108))
    with pytest.raises(Diverged):
        feed.plan_trim(below=7)
    with pytest.raises(Diverged):
        feed.seal()
    assert left(engine) == 12


def test_thinned_events_stay_known_beside_an_archive(engine, tmp_path):
    """Cursors at events that are gone stay good, and pages are not said to stay as they are."""
    write(engine, *range(6))
    feed = source(Archive(tmp_path / "archive")).bind(engine)
    third = feed.read(0, FIRST, 3).cursor
    assert feed.read(0, FIRST, 2).full
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM log WHERE id = 3"))
        source().thin(connection, until=3)
    assert numbers(feed, third) == [3, 4, 5]
    assert not feed.read(0, FIRST, 2).full


def test_numbers_that_begin_again_are_noticed_beside_an_archive(engine, tmp_path):
    """New events at the numbers of old ones are neither hidden behind those nor sealed."""
    write(engine, *range(8))
    feed = source(Archive(tmp_path / "archive")).bind(engine)
    feed.seal()
    write(engine, 8)
    feed.trim(feed.plan_trim(sealed=8))
    assert numbers(feed) == [*range(9)]
    run(engine, "DELETE FROM log", "DELETE FROM sqlite_sequence")
    write(engine, *range(200, 205))
    for one in (feed, source(Archive(tmp_path / "archive")).bind(engine)):
        with pytest.raises((FeedFailure, Diverged)):
            numbers(one)
        with pytest.raises((FeedFailure, Diverged)):
            one.seal()
    write(engine, *range(205, 215))
    with pytest.raises(FeedFailure, match="start again below 8"):
        feed.seal()
