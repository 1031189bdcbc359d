"""Sequences: how their numbers have to rise, and who may read them."""

import re

import pytest
from harness.log import LOG, append, stranger
from harness.ordering_table import (
    GATED,
    OBSERVED,
    SEQUENCED,
    SEQUENCING,
    SINGLE_WRITER,
    assert_refused,
    refusal,
    shows,
)

from zeroeventhub import FIRST
from zeroeventhub.errors import ConfigurationError, FeedFailure

UNRULY = {
    "cached": "CACHE 20",
    "descending": "INCREMENT -1 MINVALUE 1 MAXVALUE 1000 RESTART 1000",
    "cycling": "MAXVALUE 3 CYCLE",
}


@pytest.mark.parametrize("kind", UNRULY)
@shows("CACHE above 1, descending or cycling numbers", OBSERVED, GATED, later=(GATED,))
def test_unruly_sequences_are_refused(log, kind):
    """A sequence whose numbers do not rise one by one is refused, before and after the start."""
    log.run(f"ALTER SEQUENCE log_id_seq {UNRULY[kind]}")
    with refusal("INCREMENT 1 CACHE 1 NO CYCLE"):
        log.restarted().info()
    assert_refused(log, "INCREMENT 1 CACHE 1 NO CYCLE")


@pytest.mark.parametrize("kind", UNRULY)
@shows("CACHE above 1, descending or cycling numbers", SEQUENCED)
def test_unruly_sequences_can_be_sequenced(bare, kind):
    """Sessions that draw numbers in any order, even twice, have their events seen in turn."""
    LOG.create(bare.engine)
    bare.run(f"ALTER SEQUENCE log_id_seq {UNRULY[kind]}")
    bare.publish()
    with bare.engine.connect() as one, bare.engine.connect() as two:
        for number in range(6):
            session = (one, two)[number % 2]
            # A number comes again only once its last event is gone.
            bare.run("DELETE FROM log")
            append(session, number)
            session.commit()
            assert bare.news() == [number]


@shows("it needs", OBSERVED, GATED)
def test_reader_needs_the_table_and_its_sequence(log):
    """A role is refused until it may read the table and the sequence, and needs no more."""
    log.write(0)
    with stranger(log) as (name, engine):
        feed = log.restarted(engine)
        with pytest.raises((ConfigurationError, FeedFailure)):
            feed.info()
        log.run(f"GRANT SELECT ON log TO {name}")
        with refusal("GRANT SELECT ON SEQUENCE"):
            feed.info()
        log.run(f"GRANT SELECT ON SEQUENCE log_id_seq TO {name}")
        assert [event.data["n"] for event in feed.read(0, FIRST, 10).events] == [0]


@shows("numbers above the sequence", OBSERVED, GATED, later=(GATED,))
def test_numbers_above_the_sequence_are_refused(log):
    """Rows that the sequence has not reached are refused, with the statement that mends it."""
    log.run("INSERT INTO log (id, n) VALUES (7, 0)")
    feed = log.restarted()
    with refusal("setval") as refused:
        feed.info()
    assert_refused(log, "setval")
    log.run(re.search(r"SELECT setval\(.*\d\)", str(refused.value))[0])
    log.feed = feed
    assert log.news() == [0]
    log.assert_news(1)


@shows("numbers above the sequence", *SEQUENCING, SINGLE_WRITER)
def test_numbers_above_the_sequence_are_seen(log):
    """Rows with numbers far above the last are events, and so are those that come after them."""
    log.write(0)
    log.run("INSERT INTO log (id, n) VALUES (70, 1)")
    assert log.news() == [0, 1]
    log.assert_news(2)
