"""A canary in every place where a publisher may have a secret, looked for in all that is said."""

import sqlite3
from contextlib import closing, contextmanager
from itertools import product

import httpx
import psycopg
import pymysql
import pytest
from harness.readers import PATIENCE, mounted, page_url
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
    text,
)

from zeroeventhub import Event, FeedInfo, Page, TableFeed
from zeroeventhub.errors import FeedFailure
from zeroeventhub.publisher import horizon_watch

CANARY = "kanarek"
ROUTES = ["", "/events", "/cursor", "/splits", "/lag", "/cursor-of-count", "/http-feed"]

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
def said(records, caplog, capfd):
    """A function that returns all that was said so far: log, standard output and error."""

    def said():
        found = "".join(f"{vars(one)!r} {one.getMessage()}" for one in caplog.records)
        return found + caplog.text + "".join(capfd.readouterr())

    return said


@contextmanager
def asking(feed, engine=None, **options):
    """Serve a feed; yield what asks it, and returns a status and all that is shown."""
    with mounted(feed, engine, **options) as url, httpx.Client(timeout=PATIENCE) as session:

        def ask(route="/events", sent=None, /, **parameters):
            address = page_url(url, **parameters).replace("/events", route, 1)
            answer = session.get(address, headers=sent)
            return answer.status_code, f"{answer.headers} {answer.text}"

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


@pytest.mark.parametrize("hook", [raising(KeyError), querying], ids=["lookup", "database"])
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
            status, shown = ask(route, secrets, key=CANARY)
            assert (status, CANARY in shown) == (500, False)
    logged = said()
    assert "The hook authorize failed" in logged
    assert CANARY not in logged


PARAMETERS = ["token", "partition", "cursor", "pagesizehint", "wait", "event-types", "stop", "time"]
PARAMETERS += ["count", "events", "n", "cursor0", "headers", "lastEventId", "timeout"]


def test_parameters_are_repeated_nowhere(sqlite, said):
    """Whatever is asked for, no answer and no record repeats it."""
    events.metadata.create_all(sqlite)
    feed = TableFeed(events, data="data", time="at", type="kind", cloudevents=True)
    with asking(feed, sqlite, http_feed=True) as ask:
        for route, name in product(ROUTES, PARAMETERS):
            value = f'"2-1-{CANARY}\n' if name == "time" else f"2-1-{CANARY}"
            assert CANARY not in ask(route, **{name: value})[1], (route, name)
    assert CANARY not in said()


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
    events.metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        connection.execute(text("INSERT INTO events (data, at) VALUES (:data, :at)"), value)
    with asking(TableFeed(events), sqlite) as ask:
        status, shown = ask()
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
    columns = {"P0001": func.boom(type_=Integer), "22P02": cast(events.c.kind, Integer)}
    for state, column in columns.items():
        with asking(TableFeed(events, data={"value": column}), postgresql) as ask:
            status, shown = ask()
        assert (status, CANARY in shown) == (500, False)
        logged = said()
        assert f" ({state})" in logged
        assert CANARY not in logged
        assert "SELECT" not in logged


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
            status, shown = ask(route)
            assert (status, CANARY in shown) == (503, False)
    logged = said()
    assert "The feed's database cannot answer just now." in logged
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


def hidden():
    """Raise an error that hides another one."""
    try:
        int("x")
    except ValueError:
        raise KeyError(CANARY) from None


class StrangeError(Exception):
    """An error whose code is somebody else's text."""

    sqlstate = f"{CANARY} and more"


GROUP = ExceptionGroup(CANARY, [ValueError(CANARY), KeyError(CANARY)])
NAMED = [
    (["builtins.ExceptionGroup", "builtins.ValueError", "builtins.KeyError"], GROUP),
    (["psycopg.errors.UniqueViolation (23505)"], psycopg.errors.UniqueViolation(CANARY)),
    (["pymysql.err.ProgrammingError (1146)"], pymysql.err.ProgrammingError(1146, CANARY)),
    (["pymysql.err.InterfaceError"], pymysql.err.InterfaceError(CANARY)),
    (["builtins.ConnectionRefusedError (ECONNREFUSED)"], ConnectionRefusedError(111, CANARY)),
    (["builtins.KeyError"], KeyError(4_111_111)),
    (["builtins.OSError"], OSError(CANARY)),
    ([f"{__name__}.StrangeError"], StrangeError()),
]


@pytest.fixture
def told(said, records):
    """A function that returns the lines by which the log tells of a failing feed."""

    def told(fail):
        with asking(Failing(fail)) as ask:
            status, shown = ask()
        (record,) = records()
        assert (status, CANARY in shown + said() + record.getMessage()) == (500, False)
        return record.getMessage().splitlines()

    return told


def reasons(lines):
    """The errors that lines of the log give as reasons."""
    return [line.removeprefix("because of ") for line in lines if line.startswith("because of ")]


@pytest.mark.parametrize(("names", "error"), NAMED, ids=[names[0] for names, _ in NAMED])
def test_errors_are_told_by_their_names_and_codes(told, names, error):
    """What a driver or the system calls an error by a code is told, and a number of data is not."""
    assert reasons(told(lambda: raise_(error))) == names


def test_failure_is_told_by_kinds_and_places(told):
    """Types, places and the library's own sentence are told, and other people's texts are not."""

    def insert_twice():
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.execute("CREATE TABLE t (c UNIQUE)")
            for _ in range(2):
                connection.execute("INSERT INTO t VALUES (?)", [CANARY])

    _, first, *rest = told(causing(ValueError(f"no JSON: {CANARY}")))
    assert first == (
        "zeroeventhub.errors.FeedFailure: The row at position 7 cannot be published: ValueError"
    )
    assert any(line.startswith(f"    {__file__}:") for line in rest)
    assert any(line.endswith(" in causing.<locals>.fail") for line in rest)
    assert reasons(rest) == ["builtins.ValueError"]
    assert reasons(told(insert_twice)) == ["sqlite3.IntegrityError (SQLITE_CONSTRAINT_UNIQUE)"]
    assert not any("ValueError" in line for line in told(hidden))


def test_long_chains_are_cut(told):
    """Neither a long chain that bites its tail, nor a deep place, is told to its end."""
    first = last = ValueError(CANARY)
    for _ in range(100):
        last.__cause__ = ValueError(CANARY)
        last = last.__cause__
    last.__cause__ = first

    def recurse():
        recurse()

    assert 5 <= len(reasons(told(lambda: raise_(first)))) <= 10
    assert 5 <= len(told(recurse)) <= 40


def test_causes_are_told_apart_by_their_kinds_and_places(records):
    """Failures of one kind at one place are told once, whatever they are about, and others anew."""
    feed = Failing()
    with asking(feed) as ask:
        for fail, expected in [
            (causing(ValueError("a"), said="a"), 1),
            (causing(ValueError("b"), said="b"), 0),
            (causing(KeyError("a")), 1),
            (lambda: raise_(KeyError("a")), 1),
            (hidden, 1),
            (hidden, 0),
        ]:
            feed.fail = fail
            assert ask()[0] == 500
            assert len(records()) == expected


def test_good_answers_are_silent(sqlite, said, monkeypatch):
    """What goes well says nothing at all, and a payload is in the answer alone."""
    monkeypatch.setattr(horizon_watch, "TOO_LATE", 0.0)
    events.metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        connection.execute(insert(events), {"data": CANARY})
    with asking(TableFeed(events, data="data"), sqlite) as ask:
        for route in ROUTES[:6]:
            ask(route, count=2, events=2)
        assert CANARY in ask("/events", {"Authorization": CANARY})[1]
    assert CANARY not in said()
