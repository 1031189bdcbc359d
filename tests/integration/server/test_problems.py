"""Problems as readers and the log see them: constant texts, and no secret of the publisher's.

The tests put a canary wherever a publisher may have a secret, and look for it in every output.
"""

import re
import sqlite3
from contextlib import closing, contextmanager
from itertools import pairwise, product

import httpx
import psycopg
import pymysql
import pytest
import sqlalchemy as sa
from harness.readers import PATIENCE, get, mounted, page_url
from harness.statements import add
from harness.tables import event_table
from sqlalchemy import text

from zeroeventhub import FIRST, Client, Principal, TableFeed, errors, feed_routes
from zeroeventhub.publisher import horizon_monitor
from zeroeventhub.server import problems

CANARY = "kanarek"
ROUTES = ["", "/events", "/cursor", "/splits", "/lag", "/cursor-of-count", "/http-feed"]

events = event_table("events", data=sa.JSON, at=sa.DateTime, kind=sa.String(20))


@pytest.fixture
def url(feed):
    """The URL of the feed, whose readers are known by the name that they give."""

    def authorize(request):
        if "refused" in request.headers:
            raise errors.Unauthorized(f"Not with {CANARY}.")
        return Principal(name=request.headers.get("name", ""))

    with mounted(feed, authorize=authorize) as url:
        yield url


@pytest.fixture
def said(records, caplog, capfd):
    """A function that returns all that was said so far: log, standard output and error."""

    def said():
        found = "".join(f"{vars(one)!r} {one.getMessage()}" for one in caplog.records)
        return found + caplog.text + "".join(capfd.readouterr())

    return said


# What readers see.

PROBLEMS = [
    (errors.BadRequest("why"), 400, "bad-request", "DEBUG"),
    (errors.BadCursor("why"), 400, "bad-cursor", "DEBUG"),
    (errors.Unauthorized("why"), 401, "unauthorized", "INFO"),
    (errors.Forbidden("why"), 403, "forbidden", "INFO"),
    (errors.NotFound("why"), 404, "not-found", "DEBUG"),
    (errors.TokenChanged("why"), 409, "token-changed", "DEBUG"),
    (errors.Trimmed("why"), 410, "trimmed", "INFO"),
    (errors.Diverged("why"), 410, "diverged", "INFO"),
    (errors.TooManyRequests("why", retry_after=0.2), 429, "too-many-requests", "INFO"),
    (errors.Unavailable("why"), 503, "unavailable", "WARNING"),
    (errors.FeedFailure(CANARY), 500, "failed", "ERROR"),
    (KeyError(CANARY), 500, "failed", "ERROR"),
]


def test_problem_is_answered_and_logged(feed, url, records):
    """Each error has its status, its kind and its loudness; answer and record share an id."""
    for error, status, kind, level in PROBLEMS:
        feed.error = error
        answer = get(url, headers={"name": "alice"})
        document = answer.json()
        assert (answer.status_code, document["status"]) == (status, status)
        assert document["type"] == f"urn:zeroeventhub:problem/{kind}"
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["cache-control"] == "no-store"
        assert document["title"]
        assert document["detail"] == (
            "The feed failed: the reason is in the publisher's log." if status == 500 else "why"
        )
        assert CANARY not in answer.text
        (record,) = records()
        assert (record.levelname, record.name) == (level, "zeroeventhub.server")
        logged = (record.route, record.principal, record.status, record.problem)
        assert logged == ("events", "alice", status, kind)
        assert document["instance"] == f"urn:uuid:{record.request_id}"
        assert record.request_id in record.getMessage()
    answer = get(url, headers={"refused": ""})
    assert answer.json()["detail"] == f"Not with {CANARY}."  # a hook's words, for the reader alone
    (record,) = records()
    assert CANARY not in record.getMessage()


@pytest.mark.parametrize(
    "error",
    [errors.Unreachable, errors.CutPage, errors.StoreUnavailable],
    ids=lambda one: one.__name__,
)
def test_outage_of_what_a_feed_reads_is_one_of_the_feed(feed, url, records, error):
    """A feed that cannot reach what it reads is unavailable, and its readers learn no address."""
    feed.error = error(CANARY, retry_after=7)
    answer = get(url)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "7")
    assert answer.json()["type"] == "urn:zeroeventhub:problem/unavailable"
    assert CANARY not in answer.text
    (record,) = records()
    assert (record.levelname, record.status) == ("WARNING", 503)
    assert error.__name__ in record.getMessage()


class Odd(errors.FeedError):
    """A refusal of a feed's own."""

    status = 418
    problem = "teapot"


def test_problem_says_what_its_error_knows(feed, url):
    """A problem says when to come back, how to say who one is, or where history begins."""
    for error, name, value in [
        (errors.Unavailable("why"), "Retry-After", "1"),
        (errors.Unavailable("why", retry_after=2.1), "Retry-After", "3"),
        (errors.TooManyRequests("why", retry_after=7), "Retry-After", "7"),
        (errors.Unauthorized("why"), "WWW-Authenticate", "Bearer"),
        (errors.Unauthorized("why", challenge="Basic a=b"), "WWW-Authenticate", "Basic a=b"),
        (errors.Forbidden("why"), "Retry-After", None),
        (errors.FeedFailure("why"), "Retry-After", None),
        (errors.Trimmed("why", earliest="7"), "earliestCursor", "7"),
        (errors.Trimmed("why"), "earliestCursor", "_first"),
        (errors.Diverged("why"), "earliestCursor", None),
    ]:
        feed.error = error
        answer = get(url)
        assert (answer.json().get(name) or answer.headers.get(name)) == value, error
    feed.error = Odd("why")
    answer = get(url)
    document = answer.json()
    assert (answer.status_code, document["type"]) == (418, "urn:zeroeventhub:problem/teapot")
    assert (document["title"], document["detail"]) == ("The feed refused the request.", "why")


def test_problem_names_the_page_of_errors(feed):
    """Each problem names its kind's part of the publisher's page, and so does the client."""
    page = "https://" + "errors.html".rjust(500, "x")
    with mounted(feed, help_url=page) as url:
        for error, _, kind, _ in PROBLEMS:
            feed.error = error
            assert get(url).json()["help"] == f"{page}#{kind}"
        feed.error = errors.Diverged("why")
        with pytest.raises(errors.Diverged, match=rf"^why See {re.escape(page)}#diverged for"):
            Client(url).fetch(0, FIRST)


@pytest.mark.parametrize(
    "address",
    [
        "errors.html",
        "ftp://docs.example",
        "https://docs example",
        "https://docs.example/#top",
        "https://" + "x" * 501,
    ],
)
def test_page_of_errors_has_an_address(feed, address):
    """An address that readers could not open is refused where the feed is mounted."""
    with pytest.raises(errors.ConfigurationError, match="help_url"):
        feed_routes("/orders", feed, help_url=address)


def test_stream_that_fails_is_ended_and_logged(feed, records, said):
    """A stream ends where its feed fails, and the log has it as any other answer."""
    with (
        mounted(feed, server_sent_events=True) as url,
        httpx.stream("GET", f"{url}/server-sent-events", timeout=10) as stream,
    ):
        received = b""
        for chunk in stream.iter_raw():
            received += chunk
            feed.error = KeyError(CANARY)
        assert received == b'id: 1\ndata: {"n":0}\n\n'
    assert CANARY not in said()
    record = records()[-1]
    assert (record.route, record.status) == ("server-sent-events", 500)


def test_id_of_a_proxy_is_logged(feed, url, records):
    """An id in the header X-Request-Id is logged if it is harmless; the answer has its own."""
    feed.error = errors.Forbidden("why")
    harmless = ["0af7651916cd43dd-8448_eb.211C", "x" * 128]
    for number, sent in enumerate([*harmless, "x" * 129, "a b", "a;b=1", "\xe9", ""]):
        named = {"X-Request-Id": sent.encode("latin-1"), "name": str(number)}
        answer = get(url, headers=named)
        (record,) = records()
        assert record.x_request_id == (sent if sent in harmless else None)
        assert (f"x_request_id={sent}" in record.getMessage()) is (sent in harmless)
        assert not sent or sent not in answer.text
        assert re.fullmatch(r"[0-9a-f-]{36}", record.request_id)


# How often the log has them.


def test_refusals_are_logged_once_for_each_reader(feed, url, records, monkeypatch):
    """A reader that is refused again and again is one record, whatever other readers get."""
    monkeypatch.setattr(problems, "PAUSE", 0.0)
    for name in ("alice", "bob", "alice", "bob"):
        feed.error = errors.Forbidden("why")
        get(url, headers={"name": name})
        feed.error = None
        assert get(url, headers={"name": name}).status_code == 200
        assert get(url, headers={"refused": ""}).status_code == 401
    found = [(one.status, one.principal) for one in records()]
    assert found == [(403, "alice"), (401, ""), (403, "bob")]


def test_failure_that_goes_on_is_logged_now_and_then(feed, url, records, monkeypatch):
    """What fails again and again is one record; after a while there is another, with its count."""
    feed.error = KeyError()
    for _ in range(3):
        get(url)
    assert [one.times for one in records()] == [1]
    monkeypatch.setattr(problems, "AGAIN", 0.0)
    get(url)
    monkeypatch.undo()
    assert [one.times for one in records()] == [3]
    for _ in range(3):
        for feed.error in (None, KeyError()):
            get(url)
    assert records() == []


# Secrets.


@contextmanager
def asking(feed, engine=None, **options):
    """Serve a feed; yield what asks it, and returns a status and all that is shown."""
    with mounted(feed, engine, **options) as url, httpx.Client(timeout=PATIENCE) as session:

        def ask(route="/events", sent=None, /, **parameters):
            address = page_url(url, **parameters).replace("/events", route, 1)
            answer = session.get(address, headers=sent)
            return answer.status_code, f"{answer.headers} {answer.text}"

        yield ask


def lookup(request):
    """Fail with all that a request has."""
    raise KeyError(f"{dict(request.headers)} {request.cookies} {request.query_params} {CANARY}")


def querying(request):
    """Fail in a query of a database."""
    # In a thread of its own, whose connection no other thread can close.
    with sa.create_engine("sqlite://", poolclass=sa.NullPool).connect() as connection:
        connection.execute(text("SELECT :token FROM kanarek"), {"token": CANARY})


@pytest.mark.parametrize("hook", [lookup, querying])
def test_hook_that_fails_shows_no_secret(feed, said, hook):
    """What a hook raises of a request is in no answer, and nowhere in what is logged."""
    secrets = dict.fromkeys(["Authorization", "Cookie", "X-API-Key", "X-Request-Id"], f"{CANARY};")
    with asking(feed, authorize=hook) as ask:
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


def test_text_of_a_database_is_not_logged(postgresql, said):
    """What a database says of an error, and the statement with its values, are in no record."""
    with postgresql.begin() as connection:
        events.metadata.create_all(connection)
        connection.execute(sa.insert(events), {"data": 1, "kind": CANARY})
        connection.exec_driver_sql(
            "CREATE FUNCTION boom() RETURNS integer LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION '{CANARY}' USING DETAIL = '{CANARY}'; END $$"
        )
    columns = {"P0001": sa.func.boom(type_=sa.Integer), "22P02": sa.cast(events.c.kind, sa.Integer)}
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
def test_address_of_a_database_is_not_logged(said, url):
    """A database that cannot be reached is logged without its address, user and password."""
    engine = sa.create_engine(url)
    with asking(TableFeed(events), engine) as ask:
        for route in ROUTES[:2]:
            status, shown = ask(route)
            assert (status, CANARY in shown) == (503, False)
    logged = said()
    assert "The feed's database cannot answer just now." in logged
    assert CANARY not in logged
    engine.dispose()


def raise_(error, cause=None):
    """Raise an error."""
    raise error from cause


class StrangeError(Exception):
    """An error whose code is a text of another package."""

    sqlstate = f"{CANARY} and more"


CAUSES = {
    "builtins.KeyError": KeyError(4_111_111),
    "builtins.OSError": OSError(CANARY),
    f"{__name__}.StrangeError": StrangeError(),
    "pymysql.err.InterfaceError": pymysql.err.InterfaceError(CANARY),
    "builtins.ValueError": ExceptionGroup(CANARY, [ValueError(CANARY)]),
    "psycopg.errors.UniqueViolation (23505)": psycopg.errors.UniqueViolation(CANARY),
    "pymysql.err.ProgrammingError (1146)": pymysql.err.ProgrammingError(1146, CANARY),
    "builtins.ConnectionRefusedError (ECONNREFUSED)": ConnectionRefusedError(111, CANARY),
}


def test_failure_is_logged_by_kinds_codes_and_places(feed, said, records):
    """Types, codes and places of a failure are logged with our sentence, and no foreign text."""

    def logged(fail):
        feed.read = lambda *_: fail()
        status, shown = ask()
        (record,) = records()
        assert (status, CANARY in shown + said() + record.getMessage()) == (500, False)
        return record.getMessage()

    def insert_twice():
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.execute("CREATE TABLE t (c UNIQUE)")
            for _ in range(2):
                connection.execute("INSERT INTO t VALUES (?)", [CANARY])

    def hidden():
        try:
            int("x")
        except ValueError:
            raise KeyError(CANARY) from None

    chain = [ValueError(CANARY) for _ in range(100)]
    for error, cause in pairwise([*chain, chain[0]]):  # which bites its tail
        error.__cause__ = cause
    with asking(feed) as ask:
        for name, error in CAUSES.items():
            text = logged(lambda error=error: raise_(error))
            assert f"because of {name}\n" in f"{text}\n"
            assert f"    {__file__}:" in text
        failure = errors.FeedFailure(f"Row 7 cannot be published: {CANARY}")
        text = logged(lambda: raise_(failure, ValueError(CANARY)))
        assert "FeedFailure: Row 7 cannot be published: ValueError\n" in text
        assert "sqlite3.IntegrityError (SQLITE_CONSTRAINT_UNIQUE)\n" in logged(insert_twice)
        assert "ValueError" not in logged(hidden)
        assert 5 <= logged(lambda: raise_(*chain[:2])).count("because of ") <= 10


def test_good_answers_are_silent(sqlite, said, monkeypatch):
    """What goes well says nothing at all, and a payload is in the answer alone."""
    monkeypatch.setattr(horizon_monitor, "TOO_LATE", 0.0)
    events.metadata.create_all(sqlite)
    add(sqlite, events, {"data": CANARY})
    with asking(TableFeed(events, data="data"), sqlite) as ask:
        for route in ROUTES[:6]:
            ask(route, count=2, events=2)
        assert CANARY in ask("/events", {"Authorization": CANARY})[1]
    assert CANARY not in said()
