"""A page is applied in one transaction with its cursor, whatever `apply` is and does."""

import asyncio
import threading
import time
from contextlib import suppress

import pytest
from harness.deliveries import Poison, Shop, effects, event, write, write_page
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Session, sessionmaker

from zeroeventhub import AsyncPendingPage, Event, PendingPage
from zeroeventhub._follow import Deliver, Place
from zeroeventhub.errors import ConfigurationError, Fenced, StoreUnavailable
from zeroeventhub.protocol import Page


class Base(DeclarativeBase):
    """What the tests' classes are mapped on."""


class Effect(Base):
    """An effect, mapped."""

    __table__ = effects


def test_page_and_cursor_are_committed_together(shop):
    """The effects of a page are there, and the cursor behind it."""
    shop.to(write_page).deliver(shop.step(event(1), event(2), to="2"))
    assert shop.landed() == [1, 2]
    assert shop.place().cursor == "2"
    assert shop.observer.told == [("applying", [1, 2]), ("committed", 2)]


def test_error_of_apply_undoes_everything_and_passes_untouched(shop):
    """What apply raises comes out as it is, and neither effects nor cursor stay."""
    mine = Poison("mine")

    def apply(connection, page):
        """Write and fail."""
        write_page(connection, page)
        raise mine

    deliveries, step = shop.to(apply), shop.step(event(1))
    for _ in range(2):
        with pytest.raises(Poison, match="mine") as caught:
            deliveries.deliver(step)
        assert caught.value is mine
    assert (shop.landed(), shop.place()) == ([], step.place)
    assert shop.observer["failed"] == [["Poison", 1], ["Poison", 2]]
    assert shop.observer["raised"] == [["Poison"]] * 2
    assert shop.observer["committed"] == []


def test_tries_are_counted_from_where_the_page_was_read(shop):
    """A failure at another place is a first one."""
    shop.place()

    def apply(connection, one: Event):
        """Fail at the second event."""
        if one.data["n"] == 2:
            raise Poison

    deliveries = shop.to(apply)
    with pytest.raises(Poison):
        deliveries.deliver(shop.step(event(2)))
    deliveries.deliver(shop.step(event(1)))
    with pytest.raises(Poison):
        deliveries.deliver(shop.step(event(2), to="2"))
    assert shop.observer["failed"] == [["Poison", 1], ["Poison", 1]]


@pytest.mark.parametrize("stale", [Place("elsewhere"), None])
def test_stale_page_is_fenced_before_apply_is_called(shop, stale):
    """A page from another cursor or another epoch is not applied at all."""
    place = shop.place()
    step = Deliver(0, stale or Place(place.cursor, place.epoch + 1), Page([event(1)], "1"))

    def apply(connection, page):
        """Be called, which must not be."""
        pytest.fail("It was called.")

    with pytest.raises(Fenced):
        shop.to(apply).deliver(step)
    assert (shop.landed(), shop.place()) == ([], place)
    assert shop.observer["failed"] == []


def test_second_process_waits_at_the_cursor_and_is_fenced(sync_shop):
    """While one process applies a page, another with the same right waits, and then gives way."""
    entered, go_on = threading.Event(), threading.Event()
    calls, errors = [], []

    def apply(connection, page):
        """Write, as slowly as the test wants."""
        calls.append(threading.current_thread().name)
        write_page(connection, page)
        entered.set()
        go_on.wait(30)

    step = sync_shop.step(event(1))

    def deliver():
        try:
            sync_shop.to(apply).deliver(step)
        except Fenced as error:
            errors.append(error)

    threads = [threading.Thread(target=deliver, name=name) for name in ("first", "second")]
    threads[0].start()
    assert entered.wait(30)
    threads[1].start()
    threads[1].join(0.2)
    assert (calls, errors) == (["first"], [])
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert (calls, len(errors)) == (["first"], 1)
    assert sync_shop.landed() == [1]


# What apply is given.


def test_sync_function_gets_a_connection_a_session_or_the_events(shop):
    """Sync functions work with both consumers, in each form."""

    def with_connection(connection: Connection, page: PendingPage) -> None:
        """Take a connection."""
        assert isinstance(connection, Connection)
        assert isinstance(page, PendingPage)
        write(connection, page.events)

    def with_session(session: Session, one: Event) -> None:
        """Take a session, and leave it to it when to write."""
        session.add(Effect(n=one.data["n"]))

    def with_list(connection: Connection, events: list[Event]) -> None:
        """Take a list."""
        write(connection, events)

    for number, apply in enumerate([with_connection, with_session, with_list]):
        page = [event(10 * number), event(10 * number + 1)]
        shop.to(apply).deliver(shop.step(*page, to=str(number)))
    assert shop.landed() == [0, 1, 10, 11, 20, 21]
    assert shop.place().cursor == "2"


def test_async_function_gets_a_connection_a_session_or_the_events(async_shop):
    """Async functions work in each form."""

    async def with_connection(connection, page) -> None:
        """Take a connection."""
        assert isinstance(connection, AsyncConnection)
        assert isinstance(page, AsyncPendingPage)
        await connection.run_sync(write, page.events)

    async def with_session(session: AsyncSession, one: Event) -> None:
        """Take a session, and leave it to it when to write."""
        session.add(Effect(n=one.data["n"]))

    class Applier:
        """Apply, as an object."""

        async def __call__(self, connection: AsyncConnection, events: list[Event]) -> None:
            """Take a list."""
            await connection.run_sync(write, events)

    for number, apply in enumerate([with_connection, with_session, Applier()]):
        page = [event(10 * number), event(10 * number + 1)]
        async_shop.to(apply).deliver(async_shop.step(*page, to=str(number)))
    assert async_shop.landed() == [0, 1, 10, 11, 20, 21]


class Audited(Session):
    """A session class of the caller's own."""


def test_sessions_are_made_as_the_caller_says(shop):
    """A sessionmaker's sessions are used, bound by it or by nobody."""
    made = []

    def apply(session, page):
        """Write through the session."""
        made.append(isinstance(session, Audited))
        session.add_all(Effect(n=one.data["n"]) for one in page.events)

    if shop.is_async:
        bound = async_sessionmaker(shop.async_engine, sync_session_class=Audited)
        unbound = async_sessionmaker(sync_session_class=Audited)
    else:
        bound, unbound = sessionmaker(shop.engine, class_=Audited), sessionmaker(class_=Audited)
    shop.to(apply, sessions=bound).deliver(shop.step(event(1)))
    shop.to(apply, sessions=unbound).deliver(shop.step(event(2), to="2"))
    assert (shop.landed(), made) == ([1, 2], [True, True])


def test_session_class_that_was_asked_for_is_given(shop):
    """A subclass of Session in the annotation is what the session is."""

    def apply(session: Audited, one: Event) -> None:
        """Write through the session."""
        assert isinstance(session, Audited)
        session.add(Effect(n=one.data["n"]))

    shop.to(apply).deliver(shop.step(event(1)))
    assert shop.landed() == [1]


INSERT = "INSERT INTO effects (arrival, n) VALUES (%s, %s)"


def test_psycopg_connection_is_the_one_of_the_transaction(postgresql):
    """What goes through the plain connection is committed and undone with the cursor."""
    import psycopg

    shop = Shop(postgresql)
    poison = []

    def apply(connection: psycopg.Connection, one: Event) -> None:
        """Write without SQLAlchemy."""
        connection.execute(INSERT, (one.data["n"], one.data["n"]))
        with connection.transaction():
            connection.execute("SELECT 1")
        if one.data["n"] in poison:
            raise Poison

    shop.to(apply).deliver(shop.step(event(1), event(2)))
    assert (shop.landed(), shop.place().cursor) == ([1, 2], "1")
    poison.append(4)
    with pytest.raises(Poison):
        shop.to(apply).deliver(shop.step(event(3), event(4), to="2"))
    assert (shop.landed(), shop.place().cursor) == ([1, 2], "1")


def test_async_psycopg_connection_is_the_one_of_the_transaction(postgresql, postgresql_url):
    """The same holds for psycopg's async connection."""
    import psycopg

    shop = Shop(postgresql, postgresql_url)
    poison = []

    async def apply(connection: psycopg.AsyncConnection, one: Event) -> None:
        """Write without SQLAlchemy."""
        await connection.execute(INSERT, (one.data["n"], one.data["n"]))
        if one.data["n"] in poison:
            raise Poison

    shop.to(apply).deliver(shop.step(event(1), event(2)))
    assert (shop.landed(), shop.place().cursor) == ([1, 2], "1")
    poison.append(4)
    with pytest.raises(Poison):
        shop.to(apply).deliver(shop.step(event(3), event(4), to="2"))
    assert (shop.landed(), shop.place().cursor) == ([1, 2], "1")


def test_psycopg_connection_refuses_to_commit(postgresql):
    """The plain connection cannot be committed behind the cursor's back."""
    import psycopg

    shop = Shop(postgresql)

    def apply(connection: psycopg.Connection, one: Event) -> None:
        """Commit."""
        connection.execute(INSERT, (1, 1))
        connection.commit()

    with pytest.raises(psycopg.ProgrammingError, match="commit"):
        shop.to(apply).deliver(shop.step(event(1)))
    assert (shop.landed(), shop.place().cursor) == ([], "_first")


# What apply must not do.


def committing(connection: Connection, page: PendingPage) -> None:
    """Commit the connection."""
    write(connection, page.events)
    connection.commit()


def committing_session(session: Session, page: PendingPage) -> None:
    """Commit the session."""
    session.add_all(Effect(n=one.data["n"]) for one in page.events)
    session.commit()


def swallowing(connection: Connection, page: PendingPage) -> None:
    """Commit the connection, and go on whatever comes of it."""
    with suppress(ConfigurationError):
        committing(connection, page)


@pytest.mark.parametrize("apply", [committing, committing_session, swallowing])
def test_commit_by_apply_is_refused_before_it_happens(shop, apply):
    """Neither effects nor cursor are committed by anybody but the consumer."""
    with pytest.raises(ConfigurationError, match=r"must not commit|kept from committing"):
        shop.to(apply).deliver(shop.step(event(1)))
    assert (shop.landed(), shop.place().cursor) == ([], "_first")


def test_commit_of_a_savepoint_is_apply_s_own_business(shop):
    """Savepoints may be released and rolled back."""

    def apply(connection: Connection, one: Event) -> None:
        """Use savepoints."""
        with connection.begin_nested():
            write(connection, [one])
        with pytest.raises(Poison), connection.begin_nested():
            write(connection, [one])
            raise Poison

    shop.to(apply).deliver(shop.step(event(1), event(2)))
    assert shop.landed() == [1, 2]


@pytest.mark.parametrize("kind", [Connection, Session])
def test_rollback_by_apply_is_an_error(shop, kind):
    """What apply has rolled back cannot count as applied."""

    def apply(transaction: kind, page: PendingPage) -> None:
        """Roll back."""
        write(transaction, page.events)
        transaction.rollback()

    with pytest.raises(ConfigurationError, match="rolled back"):
        shop.to(apply).deliver(shop.step(event(1)))
    assert (shop.landed(), shop.place().cursor) == ([], "_first")


@pytest.mark.parametrize("kind", [Connection, Session])
def test_error_of_an_apply_that_has_rolled_back_passes_untouched(shop, kind):
    """Who rolls back and raises has lost nothing, and is told of what was raised."""

    def apply(transaction: kind, page: PendingPage) -> None:
        """Roll back, and raise."""
        transaction.rollback()
        raise Poison

    with pytest.raises(Poison):
        shop.to(apply).deliver(shop.step(event(1)))
    assert (shop.landed(), shop.place().cursor) == ([], "_first")


def test_transaction_that_was_ended_in_plain_sql_halts_for_good(shop):
    """A COMMIT as text cannot be kept back, but is found out, and nothing goes on behind it."""

    def apply(connection: Connection, one: Event) -> None:
        """Commit as text."""
        write(connection, [one])
        connection.execute(text("COMMIT"))
        write(connection, [one])

    deliveries, step = shop.to(apply), shop.step(event(1))
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="has ended before apply did"):
            deliveries.deliver(step)
    # The cursor has moved, so that it would be read on from there.
    with pytest.raises(ConfigurationError, match="has ended before apply did"):
        deliveries.deliver(shop.step(event(2), to="2"))
    assert shop.landed() == [1]


def test_statement_that_commits_by_itself_is_found_out(mariadb):
    """MariaDB and MySQL end the transaction when a table is created."""
    shop = Shop(mariadb)

    def apply(connection: Connection, one: Event) -> None:
        """Create a table."""
        connection.execute(text("CREATE TABLE another (n integer)"))

    with pytest.raises(ConfigurationError, match="commit by themselves"):
        shop.to(apply).deliver(shop.step(event(1)))


def test_transaction_that_ended_before_apply_raised_halts_for_good(shop):
    """What was committed as text counts, even if an error would seem to have undone it."""

    def apply(connection: Connection, one: Event) -> None:
        """Commit as text, and raise."""
        connection.execute(text("COMMIT"))
        raise Poison

    deliveries = shop.to(apply)
    for cursor in ("1", "2"):
        with pytest.raises(ConfigurationError, match="has ended before apply did"):
            deliveries.deliver(shop.step(event(1), to=cursor))


def test_error_that_apply_swallows_does_not_lose_the_page_in_silence(shop):
    """PostgreSQL aborts the transaction at an error, and would then commit nothing."""

    def apply(connection: Connection, one: Event) -> None:
        """Fail in the database, and go on."""
        write(connection, [one])
        with pytest.raises(IntegrityError):
            connection.execute(effects.insert().values(n=None))

    step = shop.step(event(1))
    if shop.engine.dialect.name == "postgresql":
        with pytest.raises(ConfigurationError, match="PostgreSQL had aborted"):
            shop.to(apply).deliver(step)
        assert (shop.landed(), shop.place()) == ([], step.place)
    else:
        shop.to(apply).deliver(step)
        assert shop.landed() == [1]


def test_page_that_apply_commits_itself_is_an_error_of_apply(sync_shop):
    """A page is committed by whoever runs it, and by nobody else."""

    def apply(connection: Connection, page: PendingPage) -> None:
        """Commit the page a second time."""
        page.commit(connection)

    with pytest.raises(ConfigurationError, match="must not commit the page"):
        sync_shop.to(apply).deliver(sync_shop.step(event(1)))
    assert sync_shop.place().cursor == "_first"


# Errors of the database.


def test_error_of_the_database_that_stays_passes_untouched(shop):
    """A violated constraint is the handler's error, as it is."""

    def with_session(session: Session, one: Event) -> None:
        """Violate a constraint, which shows when the session is flushed."""
        session.add(Effect(n=None))

    with pytest.raises(IntegrityError):
        shop.to(with_session).deliver(shop.step(event(1)))
    assert shop.place().cursor == "_first"


def test_lost_connection_is_no_failure_of_apply(shop):
    """A connection that is lost while apply works is the store's, and counts as no try."""
    if shop.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has no connection to lose.")
    for set_aside in (False, True):

        def apply(connection: Connection, one: Event) -> None:
            """Lose the connection, in the middle."""
            write(connection, [one])
            kill(shop.engine, connection)
            write(connection, [one])

        with pytest.raises(StoreUnavailable):
            shop.to(apply).deliver(shop.step(event(1), set_aside=set_aside))
    assert (shop.landed(), shop.letters(), shop.place().cursor) == ([], [], "_first")
    assert shop.observer["failed"] == []
    assert shop.observer["raised"] == [["StoreUnavailable"]] * 2


def kill(engine, connection):
    """End the session of a connection, from another."""
    if engine.dialect.name == "postgresql":
        number = connection.scalar(text("SELECT pg_backend_pid()"))
        statement = f"SELECT pg_terminate_backend({number})"
    else:
        number = connection.scalar(text("SELECT connection_id()"))
        statement = f"KILL {number}"
    with engine.connect() as other:
        other.exec_driver_sql(statement)


@pytest.mark.parametrize("set_aside", [False, True])
def test_deadlock_is_no_failure_of_apply(shop, set_aside):
    """Who is chosen to give way in a deadlock is to try again."""
    if shop.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer.")
    postgresql = shop.engine.dialect.name == "postgresql"
    with shop.engine.begin() as connection:
        connection.execute(effects.insert(), [{"arrival": -n, "n": n} for n in (1, 2)])
    threads = []

    def apply(connection: Connection, one: Event) -> None:
        """Lock two rows in the order that the rival does not."""
        if postgresql:
            connection.execute(text("SET LOCAL deadlock_timeout = '10ms'"))
        lock(connection, 1)
        threads.append(threading.Thread(target=lock, args=(rival, 1)))
        threads[0].start()
        wait_until_blocked(shop.engine)
        lock(connection, 2)

    with shop.engine.connect() as rival:
        if postgresql:
            rival.execute(text("SET LOCAL deadlock_timeout = '60s'"))
        # Of two, MariaDB sends away the one that has changed less.
        rival.execute(effects.insert(), [{"n": number} for number in range(100, 200)])
        lock(rival, 2)
        with pytest.raises(StoreUnavailable):
            shop.to(apply).deliver(shop.step(event(3), set_aside=set_aside))
        threads[0].join(30)
        rival.rollback()
    assert len(threads) == 1
    assert (shop.landed(), shop.letters(), shop.place().cursor) == ([2, 1], [], "_first")


def lock(connection, n):
    """Lock the row of an effect."""
    connection.execute(effects.update().where(effects.c.arrival == -n).values(k="locked"))


def wait_until_blocked(engine):
    """Wait until a session waits for a lock."""
    if engine.dialect.name == "postgresql":
        query = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid IN ("
        query += "SELECT pid FROM pg_stat_activity WHERE datname = current_database())"
    else:
        query = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    for _ in range(200):
        # MariaDB looks again only if nobody has asked for 100 milliseconds.
        time.sleep(0.11)
        with engine.connect() as connection:
            if connection.exec_driver_sql(query).scalar():
                return
    pytest.fail("Nobody waits.")


def test_swallowed_deadlock_does_not_come_apart_from_the_cursor(mariadb):
    """MariaDB undoes everything at a deadlock, and who goes on would write without the cursor."""
    shop = Shop(mariadb)

    def apply(connection: Connection, one: Event) -> None:
        """Lose the transaction, as a deadlock would have it, and go on."""
        connection.connection.driver_connection.rollback()
        write(connection, [one])

    with pytest.raises(ConfigurationError, match="has ended before apply did"):
        shop.to(apply).deliver(shop.step(event(1)))
    assert (shop.landed(), shop.place().cursor) == ([], "_first")


class Interrupted(BaseException):
    """What is no Exception, as an interrupt is none."""


@pytest.mark.parametrize("set_aside", [False, True])
def test_interrupt_rolls_back_and_passes(shop, set_aside):
    """What is no Exception ends it, is set aside by nobody, and leaves nothing."""

    def apply(connection, page):
        """Be interrupted."""
        write_page(connection, page)
        raise Interrupted

    with pytest.raises(Interrupted):
        shop.to(apply).deliver(shop.step(event(1), set_aside=set_aside))
    assert (shop.landed(), shop.letters(), shop.place().cursor) == ([], [], "_first")


@pytest.mark.parametrize("set_aside", [False, True])
@pytest.mark.parametrize("lanes", [1, 4])
def test_cancelled_task_rolls_back(async_shop, set_aside, lanes):
    """A task that is cancelled while it applies leaves nothing of the page."""
    entered = asyncio.Event()

    async def apply(connection: AsyncConnection, one: Event) -> None:
        """Write, and wait."""
        await connection.run_sync(write, [one])
        entered.set()
        await asyncio.sleep(60)

    deliveries = async_shop.to(apply, lanes=lanes).deliveries
    step = async_shop.step(event(1, "a"), event(2, "b"), set_aside=set_aside)

    async def cancel():
        task = asyncio.create_task(deliveries.deliver(step))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert (async_shop.landed(), async_shop.letters()) == ([], [])
    assert async_shop.place().cursor == "_first"
