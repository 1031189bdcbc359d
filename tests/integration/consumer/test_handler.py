"""The transaction that `apply` is given, and what it must not do with it."""

import asyncio
from contextlib import asynccontextmanager, contextmanager, suppress

import psycopg
import pytest
from harness.deliveries import Poison, effects, event, halting, opened, write, write_page
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Session, sessionmaker

from zeroeventhub import Event, Failures, PendingPage
from zeroeventhub.consumer.handler import HandlerCancelled
from zeroeventhub.errors import ConfigurationError, Fenced

ASIDE = Failures(tries=1, then="set-aside")


class Base(DeclarativeBase):
    """What the tests' classes are mapped on."""


class Effect(Base):
    """An effect, mapped."""

    __table__ = effects


class Audited(Session):
    """A session class of the caller's own."""


def test_sessions_of_another_store_end_the_run(sync_shop, postgresql_url):
    """A cursor that stands still, as the sessions see that of another database, is an error."""
    sync_shop.feed.publish(event(1))
    with opened(postgresql_url) as other, pytest.raises(Fenced, match="has moved"):
        sync_shop.run(write_page, sessions=sessionmaker(other.engine), attempts=2)
    assert sync_shop.observer["waited"] == []
    assert (sync_shop.landed(), sync_shop.cursor()) == ([], "_first")


def test_sessions_are_made_as_the_caller_says(shop):
    """A sessionmaker's sessions are used, bound or not; so is a class named by an annotation."""
    made = []

    def apply(session, page):
        made.append(isinstance(session, Audited))
        session.add_all(Effect(n=one.data["n"]) for one in page.events)

    def annotated(session: Audited, page) -> None:
        apply(session, page)

    if shop.is_async:
        bound = async_sessionmaker(shop.async_engine, sync_session_class=Audited)
        unbound = async_sessionmaker(sync_session_class=Audited)
    else:
        bound, unbound = sessionmaker(shop.engine, class_=Audited), sessionmaker(class_=Audited)
    for number, sessions in enumerate([bound, unbound, None]):
        shop.feed.publish(event(number))
        shop.run(apply if sessions else annotated, sessions=sessions)
    assert (shop.landed(), made) == ([0, 1, 2], [True] * 3)


def test_sessions_that_suppress_errors_are_refused(either_shop):
    """An error that the context of a session swallows is no success, and no other transaction."""
    shop, given = either_shop, []

    @contextmanager
    def sync_sessions():
        with suppress(Poison), Session() as session:
            yield session

    @asynccontextmanager
    async def async_sessions():
        with suppress(Poison):
            async with AsyncSession() as session:
                yield session

    def apply(session, page):
        given.append(type(session))
        write_page(session, page)
        raise Poison

    shop.feed.publish(event(1))
    with halting(ConfigurationError, "suppresses errors"):
        shop.run(apply, sessions=async_sessions if shop.is_async else sync_sessions)
    assert (given, shop.landed(), shop.cursor()) == ([Session], [], "_first")


def test_cancelled_task_that_sessions_await_is_an_error(async_shop):
    """A run that was not cancelled does not end as if it was, which a TaskGroup overlooks."""

    @asynccontextmanager
    async def sessions():
        task = asyncio.ensure_future(asyncio.sleep(60))
        task.cancel()
        await task
        yield AsyncSession()

    async_shop.feed.publish(event(1))
    with halting(HandlerCancelled, "its session waited"):
        async_shop.run(write_page, sessions=sessions)


INSERT = "INSERT INTO effects (arrival, n) VALUES (%s, %s)"


def test_psycopg_connection_is_the_one_of_the_transaction(postgresql_shop):
    """What goes through the plain connection is committed and undone with the cursor."""
    shop = postgresql_shop

    def plain(connection: psycopg.Connection, one: Event) -> None:
        n = one.data["n"]
        connection.execute(INSERT, (n, n))
        with connection.transaction():
            connection.execute("SELECT 1")
        if n == 4:
            connection.execute(INSERT, (100, None))

    async def async_plain(connection: psycopg.AsyncConnection, one: Event) -> None:
        n = one.data["n"]
        await connection.execute(INSERT, (n, n))
        if n == 4:
            await connection.execute(INSERT, (100, None))

    apply = async_plain if shop.is_async else plain
    shop.feed.publish(*map(event, range(1, 6)))
    with halting(psycopg.errors.NotNullViolation):
        shop.run(apply, limit=2)
    assert (shop.landed(), shop.cursor()) == ([1, 2], "2")
    shop.run(apply, failures=ASIDE)
    assert (shop.landed(), shop.cursor()) == ([1, 2, 3, 5], "5")
    assert shop.letters() == [(4, "failed", 1)]


# What apply must not do.


def test_rollback_of_psycopg_moves_no_cursor(postgresql_shop):
    """An apply that raises what psycopg's blocks swallow fails, instead of skipping its page."""

    def plain(connection: psycopg.Connection, one: Event) -> None:
        connection.execute(INSERT, (one.data["n"], one.data["n"]))
        if one.data["n"] == 2:
            raise psycopg.Rollback

    async def async_plain(connection: psycopg.AsyncConnection, one: Event) -> None:
        await connection.execute(INSERT, (one.data["n"], one.data["n"]))
        if one.data["n"] == 2:
            raise psycopg.Rollback

    shop = postgresql_shop
    apply = async_plain if shop.is_async else plain
    shop.feed.publish(*map(event, range(1, 4)))
    with halting(ConfigurationError, "outside of a block of its own"):
        shop.run(apply)
    assert (shop.landed(), shop.cursor()) == ([], "_first")
    shop.run(apply, failures=ASIDE)
    assert (shop.landed(), shop.letters()) == ([1, 3], [(2, "failed", 1)])


def commit_in_silence(transaction, page):
    """Commit, and go on whatever comes of it."""
    with suppress(ConfigurationError):
        transaction.commit()


@pytest.mark.parametrize("kind", [Connection, Session])
@pytest.mark.parametrize(
    ("end", "cause", "complaint"),
    [
        (lambda given, _: given.commit(), ConfigurationError, "must not commit the transaction"),
        (commit_in_silence, ConfigurationError, "tried to commit it"),
        (lambda given, _: given.rollback(), ConfigurationError, "rolled back"),
        (lambda given, page: page.commit(given), ConfigurationError, "must not commit the page"),
    ],
    ids=["commit", "commit in silence", "roll back", "commit the page"],
)
def test_transaction_is_not_ended_by_apply(shop, kind, end, cause, complaint):
    """What apply commits or rolls back itself is an error of its own, and nothing stays of it."""

    def apply(transaction: kind, page: PendingPage) -> None:
        write(transaction, page.events)
        end(transaction, page)

    shop.feed.publish(event(1))
    with halting(cause, complaint):
        shop.run(apply)
    assert (shop.landed(), shop.cursor()) == ([], "_first")


def undo_in_the_driver(connection):
    """Roll back where SQLAlchemy does not see it, as MariaDB does at a deadlock."""
    connection.connection.driver_connection.rollback()


@pytest.mark.parametrize(
    ("kind", "end", "cause", "complaint"),
    [
        (psycopg.Connection, lambda plain: plain.commit(), psycopg.ProgrammingError, "commit"),
        (Connection, undo_in_the_driver, ConfigurationError, "ended before"),
    ],
    ids=["postgresql, commit", "mariadb, a swallowed deadlock"],
)
def test_end_of_the_transaction_in_the_driver_is_found_out(request, kind, end, cause, complaint):
    """What ends the transaction beneath SQLAlchemy halts, and nothing more is applied."""

    def apply(connection: kind, one: Event) -> None:
        end(connection)
        write(connection, [one])

    database = "postgresql" if kind is psycopg.Connection else "mariadb"
    with opened(request.getfixturevalue(f"{database}_url")) as shop:
        shop.feed.publish(event(1))
        with halting(cause, complaint):
            shop.run(apply)
        assert (shop.landed(), shop.cursor()) == ([], "_first")


def test_savepoints_are_apply_s_own_business(every_shop):
    """Savepoints of apply may be released and rolled back."""

    def apply(connection: Connection, one: Event) -> None:
        with connection.begin_nested():
            write(connection, [one])
        with pytest.raises(Poison), connection.begin_nested():
            write(connection, [one])
            raise Poison

    every_shop.feed.publish(event(1), event(2))
    every_shop.run(apply)
    assert every_shop.landed() == [1, 2]


def test_rollback_of_everything_is_no_failure_of_one_event(shop):
    """An apply that rolls back takes the letters with it, so that nothing goes on."""
    calls = []

    def apply(connection: Connection, one: Event) -> None:
        calls.append(one.data["n"])
        if one.data["n"] == 2:
            connection.rollback()
        raise Poison

    shop.feed.publish(event(1), event(2), event(3))
    with halting(ConfigurationError, "rolled back"):
        shop.run(apply, failures=ASIDE)
    assert calls == [1, 1, 2]
    assert (shop.letters(), shop.cursor()) == ([], "_first")


def test_transaction_that_was_ended_in_plain_sql_halts_for_good(every_shop):
    """A COMMIT as text cannot be kept back, but is found out, and nothing goes on after it."""
    calls = []

    def apply(connection: Connection, one: Event) -> None:
        calls.append(one.data["n"])
        write(connection, [one])
        connection.execute(text("COMMIT"))

    every_shop.feed.publish(event(1), event(2))
    with halting(ConfigurationError, "has ended before apply did"):
        every_shop.run(apply, limit=1, failures=Failures(tries=2, then="set-aside"))
    assert (calls, every_shop.landed(), every_shop.letters()) == ([1], [1], [])


def test_error_that_apply_swallows_does_not_lose_the_page_in_silence(postgresql_shop):
    """PostgreSQL aborts the transaction at an error, and would then commit nothing."""
    shop = postgresql_shop

    def apply(connection: Connection, one: Event) -> None:
        write(connection, [one])
        if one.data["n"] == 2:
            with pytest.raises(IntegrityError):
                connection.execute(effects.insert().values(n=None))

    shop.feed.publish(event(1), event(2))
    with halting(ConfigurationError, "PostgreSQL has aborted"):
        shop.run(apply)
    assert shop.landed() == []
    shop.run(apply, failures=ASIDE)
    assert (shop.landed(), shop.letters()) == ([1], [(2, "failed", 1)])


def test_violated_constraint_is_the_handler_s_error(every_shop):
    """It halts, or is undone to the savepoint, through a connection and through a session."""
    shop = every_shop

    def with_connection(connection: Connection, one: Event) -> None:
        write(connection, [one])
        if one.data["n"] == 2:
            connection.execute(effects.insert().values(n=None))

    def with_session(session: Session, one: Event) -> None:
        # It shows when the session is flushed.
        session.add(Effect(n=None if one.data["n"] == 2 else one.data["n"]))

    for number, apply in enumerate([with_connection, with_session]):
        shop.feed.publish(event(1), event(2), event(3))
        with halting(IntegrityError):
            shop.run(apply)
        assert shop.landed() == [1, 3] * number
        shop.run(apply, failures=ASIDE)
    assert shop.landed() == [1, 3] * 2
    assert shop.letters() == [(2, "failed", 1)] * 2


def test_apply_does_not_commit_a_session_of_two_phases(sync_server_shop):
    """A commit by apply is refused where it is prepared, and nothing of the page stays."""
    shop = sync_server_shop
    shop.feed.publish(event(1), event(2))

    def apply(session: Session, one: Event):
        write(session, [one])
        session.commit()
        raise Poison

    sessions = sessionmaker(shop.engine, twophase=True)
    with halting(ConfigurationError, "must not commit"):
        shop.run(apply, sessions=sessions)
    assert (shop.cursor(), shop.landed()) == ("_first", [])
    shop.run(write_page, sessions=sessions)
    assert shop.landed() == [1, 2]
