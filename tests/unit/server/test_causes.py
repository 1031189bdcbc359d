import sqlite3

import psycopg
import pymysql
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from zeroeventhub.errors import FeedFailure
from zeroeventhub.server.causes import MOST_LINKS, MOST_PLACES, cause_of, describe

CANARY = "kanarek"


def raised(raise_):
    """The error that a function ends in."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever it is
        raise_()
    return caught.value


def failing(cause, said="The row at position 7 cannot be published"):
    """An error of ours that repeats what caused it."""

    def fail():
        try:
            raise cause
        except type(cause) as error:
            raise FeedFailure(f"{said}: {error}") from error

    return raised(fail)


def test_error_is_told_by_kinds_and_places():
    """Types, places and our own sentence are told, and other people's texts are not."""
    told = describe(failing(ValueError(f"no JSON: {CANARY}")))
    first, *rest = told.splitlines()
    assert first == (
        "zeroeventhub.errors.FeedFailure: The row at position 7 cannot be published: ValueError"
    )
    assert f"    {__file__}:" in rest[0]
    assert rest[0].endswith(" in raised")
    assert any(line.endswith(" in failing.<locals>.fail") for line in rest)
    assert "because of builtins.ValueError" in rest
    assert CANARY not in told


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (psycopg.errors.UniqueViolation(CANARY), "psycopg.errors.UniqueViolation (23505)"),
        (pymysql.err.ProgrammingError(1146, CANARY), "pymysql.err.ProgrammingError (1146)"),
        (pymysql.err.InterfaceError(CANARY), "pymysql.err.InterfaceError"),
        (ConnectionRefusedError(111, CANARY), "builtins.ConnectionRefusedError (ECONNREFUSED)"),
        (KeyError(4_111_111), "builtins.KeyError"),
        (OSError(CANARY), "builtins.OSError"),
    ],
)
def test_codes_of_drivers_are_told(error, name):
    """What a driver or the system calls an error by a code is told, and a number of data is not."""
    assert describe(error) == name


def test_code_of_sqlite_is_told():
    """SQLite's name of an error is told."""

    def insert():
        connection = sqlite3.connect(":memory:")
        connection.execute("CREATE TABLE t (c UNIQUE)")
        for _ in range(2):
            connection.execute("INSERT INTO t VALUES (?)", [CANARY])

    told = describe(raised(insert))
    assert told.startswith("sqlite3.IntegrityError (SQLITE_CONSTRAINT_UNIQUE)\n")


def test_code_that_is_somebody_elses_text_is_not_told():
    """An attribute that only looks like a code may hold anything."""

    class StrangeError(Exception):
        sqlstate = f"{CANARY} and more"

    assert CANARY not in describe(StrangeError())


def test_error_of_sqlalchemy_is_told_without_its_statement():
    """Neither the statement nor its parameters are told."""

    def run():
        with create_engine("sqlite://").connect() as connection:
            connection.execute(text(f"SELECT {CANARY} FROM t WHERE c = :c"), {"c": CANARY})

    error = raised(run)
    assert isinstance(error, OperationalError)
    assert CANARY in str(error)
    told = describe(error)
    assert told.startswith("sqlalchemy.exc.OperationalError\n")
    assert "because of sqlite3.OperationalError (SQLITE_ERROR)" in told
    assert CANARY not in told


def test_groups_are_followed():
    """Members of a group are told as what it was raised from."""
    told = describe(ExceptionGroup(CANARY, [ValueError(CANARY), KeyError(CANARY)]))
    assert told.splitlines() == [
        "builtins.ExceptionGroup",
        "because of builtins.ValueError",
        "because of builtins.KeyError",
    ]


def test_error_that_was_hidden_is_not_told():
    """What `from None` hides stays hidden."""

    def fail():
        try:
            int("x")
        except ValueError:
            raise KeyError from None

    assert "ValueError" not in describe(raised(fail))


def test_long_chains_are_cut():
    """Neither a long chain, nor one that bites its tail, nor a deep place is told to its end."""

    def recurse():
        recurse()

    chain = first = ValueError()
    for _ in range(100):
        chain.__cause__ = ValueError()
        chain = chain.__cause__
    assert len(describe(first).splitlines()) == MOST_LINKS
    chain.__cause__ = first
    assert len(describe(chain).splitlines()) == MOST_LINKS
    first.__cause__ = first
    assert describe(first) == "builtins.ValueError"
    assert len(describe(raised(recurse)).splitlines()) == 1 + MOST_PLACES


def test_causes_are_alike_whatever_they_are_about():
    """Two failures of one kind at one place have the same cause, and others another."""
    one, two = (failing(ValueError(text), said=text) for text in ("a", "b"))
    assert cause_of(one) == cause_of(two)
    assert cause_of(one) != cause_of(failing(KeyError("a")))
    assert cause_of(one) != cause_of(FeedFailure("a"))


def test_causes_are_told_apart_by_their_places():
    """Errors of one kind that are raised in two places have two causes."""

    def here():
        raise KeyError

    def there():
        raise KeyError

    assert cause_of(raised(here)) == cause_of(raised(here))
    assert cause_of(raised(here)) != cause_of(raised(there))
