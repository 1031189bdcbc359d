"""A canary in every place where a publisher may have a secret, looked for in all that is said."""

import http.client
import logging
import sqlite3
from contextlib import closing, contextmanager
from itertools import product
from urllib.parse import quote

import psycopg
import pymysql
import pytest
from harness.web import serving
from sqlalchemy import (
    JSON,
    Column,
    DateTime,
    Integer,
    MetaData,
    String,
    Table,
    cast,
    create_engine,
    func,
    insert,
    select,
    text,
)
from starlette.applications import Starlette

from zeroeventhub import Event, FeedInfo, Page, TableFeed, feed_routes
from zeroeventhub.errors import FeedFailure, Forbidden, Unauthorized
from zeroeventhub.publisher import horizon_watch

CANARY = "kanarek"
ROUTES = (
    *("", "/events", "/cursor", "/splits", "/lag"),
    *("/cursor-of-count", "/http-feed", "/server-sent-events"),
)
PAGE = "/orders/events?token=1&partition=0&cursor=_first"

events = Table(
    "events",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("data", JSON),
    Column("at", DateTime),
    Column("kind", String(20)),
    sqlite_autoincrement=True,
)


class Failing:
    """A feed of one's own that calls what a test says."""

    def __init__(self, fail=lambda: None):
        self.fail = fail

    def info(self):
        return FeedInfo.of(1)

    def read(self, partition, cursor, limit):
        self.fail()
        return Page([Event.of("data")], "1")


@pytest.fixture
def said(caplog, capfd):
    """A function that returns all that was said so far: log, standard output and error."""
    caplog.set_level(logging.DEBUG, "zeroeventhub")

    def said():
        records = "".join(f"{vars(record)!r} {record.getMessage()}" for record in caplog.records)
        return records + caplog.text + "".join(capfd.readouterr())

    def records():
        found = [one for one in caplog.records if one.name.startswith("zeroeventhub")]
        caplog.clear()
        return found

    said.records = records
    return said


@contextmanager
def asking(feed, engine=None, **options):
    """Serve a feed in an application that shows errors to everybody; yield what asks it."""
    routes = feed_routes("/orders", feed, engine, **options)
    with serving(Starlette(debug=True, routes=routes)) as url:

        def ask(target, **headers):
            connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
            connection.request("GET", target, headers=headers)
            answer = connection.getresponse()
            shown = f"{answer.headers} {answer.read().decode()}"
            connection.close()
            return answer.status, shown

        yield ask


def raising(error):
    """A hook that raises an error with what it was told."""

    def authorize(request):
        raise error(f"{dict(request.headers)} {request.cookies} {request.query_params} {CANARY}")

    return authorize


def querying(request):
    """A hook whose query of a database fails."""
    with create_engine("sqlite://").connect() as connection:
        connection.execute(text("SELECT :token FROM kanarek"), {"token": CANARY})


@pytest.mark.parametrize(
    "hook",
    [raising(KeyError), raising(OSError), querying],
    ids=["lookup", "system", "database"],
)
def test_hook_that_fails_tells_no_secret(said, hook):
    """What a hook raises of a request is in no answer, and nowhere in what is logged."""
    secrets = {
        "Authorization": f"Bearer {CANARY}",
        "Cookie": f"session={CANARY}",
        "X-API-Key": CANARY,
        "X-Request-Id": f"{CANARY};",
    }
    with asking(Failing(), authorize=hook) as ask:
        for route in ROUTES[:6]:
            status, shown = ask(f"/orders{route}?key={CANARY}", **secrets)
            assert (status, CANARY in shown) == (500, False)
    logged = said()
    assert "The hook authorize failed" in logged
    assert CANARY not in logged


@pytest.mark.parametrize("error", [Unauthorized, Forbidden])
def test_words_of_a_refusal_are_not_logged(said, error):
    """What a hook says to a reader may repeat its token, and is for the reader alone."""
    with asking(Failing(), authorize=raising(error)) as ask:
        assert ask(PAGE, Authorization=f"Bearer {CANARY}")[0] == error.status
    logged = said()
    assert f"problem={error.problem}" in logged
    assert CANARY not in logged


PARAMETERS = (
    *("token", "partition", "cursor", "pagesizehint", "wait", "eventTypes", "stop", "time"),
    *("count", "n", "cursor0", "headers", "lastEventId", "timeout", "types"),
)


def test_parameters_are_repeated_nowhere(sqlite, said):
    """Whatever is asked for, no answer and no record repeats it."""
    events.metadata.create_all(sqlite)
    feed = TableFeed(events, data="data", time="at", type="kind", cloudevents=True)
    well = {"token": "1", "partition": "0", "cursor": "_first"}
    with asking(feed, sqlite, http_feed=True, server_sent_events=True) as ask:
        for route, name in product(ROUTES, PARAMETERS):
            if route == "/server-sent-events" and name not in {"cursor", "partition"}:
                continue  # a stream that has no end
            value = f'"2-1-{CANARY}\n' if name == "time" else f"2-1-{CANARY}"
            parameters = {**well, name: value}
            query = "&".join(f"{key}={quote(text)}" for key, text in parameters.items())
            assert CANARY not in ask(f"/orders{route}?{query}")[1], (route, name)
    assert CANARY not in said()


def rows(engine, *values):
    """Write rows as the database has them, whatever their columns declare."""
    with engine.begin() as connection:
        events.metadata.create_all(connection)
        for value in values:
            statement = text("INSERT INTO events (data, at) VALUES (:data, :at)")
            connection.execute(statement, value)


@pytest.mark.parametrize(
    "value",
    [
        {"data": f'{{"{CANARY}', "at": None},
        {"data": "1", "at": CANARY},
        {"data": f"\ud800{CANARY}".encode("utf-8", "surrogatepass"), "at": None},
    ],
    ids=["no JSON", "no time", "no text"],
)
def test_row_that_cannot_be_published_is_told_without_its_data(sqlite, said, value):
    """The log says which row it is and what kind of error it made."""
    rows(sqlite, value)
    with asking(TableFeed(events), sqlite) as ask:
        status, shown = ask(PAGE)
    logged = said()
    assert (status, CANARY in shown) == (500, False)
    assert "zeroeventhub.errors.FeedFailure: A row" in logged or "The row at position 1" in logged
    assert CANARY not in logged


def test_text_of_a_database_is_not_told(postgresql, said):
    """What a database says of an error, and the statement with its values, are in no record."""
    with postgresql.begin() as connection:
        events.metadata.create_all(connection)
        connection.execute(insert(events), {"data": 1, "kind": CANARY})
        connection.exec_driver_sql(
            "CREATE FUNCTION boom() RETURNS integer LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION '{CANARY}' USING DETAIL = '{CANARY}'; END $$"
        )
    feeds = {
        "P0001": {"value": func.boom(type_=Integer)},
        "22P02": {"value": cast(events.c.kind, Integer)},
    }
    for state, data in feeds.items():
        with asking(TableFeed(events, data=data), postgresql) as ask:
            status, shown = ask(PAGE)
        assert (status, CANARY in shown) == (500, False)
        logged = said()
        assert f" ({state})" in logged
        assert CANARY not in logged
        assert "SELECT" not in logged


def test_table_that_has_gone_is_told_without_a_statement(sqlite, said):
    """A table that is dropped under a feed is a failure like any other."""
    events.metadata.create_all(sqlite)
    with asking(TableFeed(events), sqlite) as ask:
        assert ask(PAGE)[0] == 200
        events.drop(sqlite)
        status, shown = ask(f"{PAGE}&key={CANARY}")
    assert status == 500
    assert "SELECT" not in shown + said()


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql+psycopg://{CANARY}:{CANARY}@127.0.0.1:1/{CANARY}",
        f"mariadb+pymysql://{CANARY}:{CANARY}@127.0.0.1:1/{CANARY}",
        f"sqlite:////nowhere/{CANARY}.db",
    ],
)
def test_address_of_a_database_is_not_told(said, url):
    """A database that cannot be reached is told without its address, its user and the password."""
    engine = create_engine(url)
    with asking(TableFeed(events), engine) as ask:
        for route in ROUTES[:2]:
            status, shown = ask(f"/orders{route}?token=1&partition=0&cursor=_first")
            assert (status, CANARY in shown) == (503, False)
    logged = said()
    assert "The feed's database cannot answer just now." in logged
    assert CANARY not in logged
    engine.dispose()


def test_password_that_is_refused_is_not_told(mariadb, said):
    """A wrong password is in no record either."""
    engine = create_engine(mariadb.url.set(username=CANARY, password=CANARY))
    with asking(TableFeed(events), engine) as ask:
        status, shown = ask(PAGE)
    logged = said()
    assert (status, CANARY in shown) == (503, False)
    assert "pymysql.err.OperationalError (1045)" in logged
    assert CANARY not in logged
    engine.dispose()


def causing(cause, said="The row at position 7 cannot be published"):
    """A failure of a feed that repeats what caused it."""

    def fail():
        try:
            raise cause
        except type(cause) as error:
            raise FeedFailure(f"{said}: {error}") from error

    return fail


def raise_(error):
    """Raise an error."""
    raise error


def insert_twice():
    """Break a rule of SQLite's."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE t (c UNIQUE)")
        for _ in range(2):
            connection.execute("INSERT INTO t VALUES (?)", [CANARY])


def hide():
    """Raise an error that hides another one."""
    try:
        int("x")
    except ValueError:
        raise KeyError(CANARY) from None


def chain(length):
    """An error at the end of a long chain that bites its tail."""
    first = last = ValueError(CANARY)
    for _ in range(length):
        last.__cause__ = ValueError(CANARY)
        last = last.__cause__
    last.__cause__ = first
    return first


def recurse():
    """Call oneself for ever."""
    recurse()


class StrangeError(Exception):
    """An error whose code is somebody else's text."""

    sqlstate = f"{CANARY} and more"


CODES = {
    "psycopg.errors.UniqueViolation (23505)": psycopg.errors.UniqueViolation(CANARY),
    "pymysql.err.ProgrammingError (1146)": pymysql.err.ProgrammingError(1146, CANARY),
    "pymysql.err.InterfaceError": pymysql.err.InterfaceError(CANARY),
    "builtins.ConnectionRefusedError (ECONNREFUSED)": ConnectionRefusedError(111, CANARY),
    "builtins.KeyError": KeyError(4_111_111),
    "builtins.OSError": OSError(CANARY),
    f"{__name__}.StrangeError": StrangeError(),
}


@pytest.fixture
def told(said):
    """A function that returns the lines by which the log tells of a failing feed."""

    def told(fail):
        with asking(Failing(fail)) as ask:
            status, shown = ask(PAGE)
        (record,) = said.records()
        assert (status, CANARY in shown + said() + record.getMessage()) == (500, False)
        return record.getMessage().splitlines()

    return told


@pytest.mark.parametrize("name", CODES)
def test_codes_of_drivers_are_told(told, name):
    """What a driver or the system calls an error by a code is told, and a number of data is not."""
    assert f"because of {name}" in told(lambda: raise_(CODES[name]))


def test_failure_is_told_by_kinds_and_places(told):
    """Types, places and the library's own sentence are told, and other people's texts are not."""
    _, first, *rest = told(causing(ValueError(f"no JSON: {CANARY}")))
    assert first == (
        "zeroeventhub.errors.FeedFailure: The row at position 7 cannot be published: ValueError"
    )
    assert any(line.startswith(f"    {__file__}:") for line in rest)
    assert any(line.endswith(" in causing.<locals>.fail") for line in rest)
    assert "because of builtins.ValueError" in rest


def test_kinds_of_errors_are_followed(told):
    """Names of SQLite's, members of groups and hidden errors are told as they are."""
    assert "because of sqlite3.IntegrityError (SQLITE_CONSTRAINT_UNIQUE)" in told(insert_twice)
    group = ExceptionGroup(CANARY, [ValueError(CANARY), KeyError(CANARY)])
    lines = told(lambda: raise_(group))
    assert [line for line in lines if line.startswith("because")] == [
        "because of builtins.ExceptionGroup",
        "because of builtins.ValueError",
        "because of builtins.KeyError",
    ]
    assert not any("ValueError" in line for line in told(hide))


def test_long_chains_are_cut(told):
    """Neither a long chain that bites its tail, nor a deep place, is told to its end."""
    lines = told(lambda: raise_(chain(100)))
    assert 5 <= sum(line.startswith("because") for line in lines) <= 10
    assert 5 <= len(told(recurse)) <= 40


def test_causes_are_told_apart_by_their_kinds_and_places(said):
    """Failures of one kind at one place are told once, whatever they are about, and others anew."""
    feed = Failing()
    with asking(feed) as ask:
        for fail, expected in [
            (causing(ValueError("a"), said="a"), 1),
            (causing(ValueError("b"), said="b"), 0),
            (causing(KeyError("a")), 1),
            (lambda: raise_(KeyError("a")), 1),
            (hide, 1),
            (hide, 0),
        ]:
            feed.fail = fail
            assert ask(PAGE)[0] == 500
            assert len(said.records()) == expected


def test_good_answers_are_silent(sqlite, said, monkeypatch):
    """What goes well says nothing at all, and a payload is in the answer alone."""
    monkeypatch.setattr(horizon_watch, "TOO_LATE", 0.0)
    events.metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        connection.execute(insert(events), {"data": CANARY})
        assert connection.scalar(select(func.count()).select_from(events)) == 1
    with asking(TableFeed(events, data="data"), sqlite) as ask:
        for route in ROUTES[:6]:
            ask(f"/orders{route}?token=1&partition=0&cursor=_first&count=2&events=2")
        assert CANARY in ask(PAGE, Authorization=CANARY)[1]
    assert CANARY not in said()
