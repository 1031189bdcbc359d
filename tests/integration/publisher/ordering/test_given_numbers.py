"""Numbers that a client hands in, or that lie above the sequence."""

import re

import pytest
from harness.ordering_table import (
    GATED,
    OBSERVED,
    OBSERVED_MARIADB,
    SEQUENCING,
    SINGLE_WRITER,
    assert_refused,
    refusal,
    shows,
)
from sqlalchemy.exc import IntegrityError

# a number handed in by a client

HANDED_IN = "INSERT INTO log (id, n) VALUES (2, 9)"


def leave_a_gap(log):
    """Publish events of which one, the second, is gone, and read them."""
    log.publish()
    log.write(0, 1, 2)
    log.run("DELETE FROM log WHERE id = 2")
    assert log.news() == [0, 2]


@shows("a number handed in by a client", OBSERVED, OBSERVED_MARIADB, SINGLE_WRITER)
def test_number_handed_in_is_not_seen_behind_a_cursor(log):
    """A row that is given a low number by a client is passed over by who is behind it."""
    leave_a_gap(log)
    log.run(HANDED_IN)
    assert log.news() == []
    assert log.everything() == [0, 9, 2]


@shows("a number handed in by a client", GATED)
def test_number_handed_in_is_refused_by_the_guard(log):
    """A row that is given a low number by a client is refused, with what to do."""
    leave_a_gap(log)
    with pytest.raises(IntegrityError, match="leave id out"):
        log.run(HANDED_IN)
    log.write(3)
    assert log.news() == [3]


@shows("a number handed in by a client", *SEQUENCING)
def test_number_handed_in_is_in_order(log):
    """A row that is given its number by a client is a new event like any other."""
    leave_a_gap(log)
    log.run(HANDED_IN)
    assert log.news() == [9]


# numbers above the sequence


@shows("numbers above the sequence", OBSERVED, GATED)
def test_numbers_above_the_sequence_are_refused(log):
    """Rows that the sequence has not reached are refused, with the statement that mends it."""
    log.publish()
    log.run("INSERT INTO log (id, n) VALUES (7, 0)")
    feed = log.restarted()
    with refusal("setval") as refused:
        feed.info()
    assert_refused(log, "setval")
    log.run(re.search(r"SELECT setval\(.*\d\)", str(refused.value))[0])
    log.feed = feed
    assert log.news() == [0]
    log.write(1)
    assert log.news() == [1]


@shows("numbers above the sequence", *SEQUENCING, SINGLE_WRITER)
def test_numbers_above_the_sequence_are_seen(log):
    """Rows with numbers far above the last are events, and so are those that come after them."""
    log.publish()
    log.write(0)
    log.run("INSERT INTO log (id, n) VALUES (70, 1)")
    assert log.news() == [0, 1]
    log.write(2)
    assert log.news() == [2]
