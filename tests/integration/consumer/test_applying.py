"""A page is applied in one transaction with its cursor, whatever `apply` is and does."""

import asyncio
import threading
from contextlib import suppress

import psycopg
import pytest
from harness.deliveries import (
    Poison,
    Rival,
    effects,
    event,
    failing,
    halting,
    kill,
    opened,
    write,
    write_page,
    write_page_async,
)
from harness.waiting import DEADLINE, until
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Session, sessionmaker

from zeroeventhub import Event, Failures, PendingPage
from zeroeventhub.errors import ConfigurationError

ASIDE = Failures(tries=1, then="set-aside")


class Base(DeclarativeBase):
    """What the tests' classes are mapped on."""


class Effect(Base):
    """An effect, mapped."""

    __table__ = effects


def test_page_and_cursor_are_committed_together(shop):
    """The effects of a page are there, and the cursor behind it."""
    shop.feed.publish(event(1), event(2))
    shop.run(write_page)
    assert (shop.landed(), shop.cursor()) == ([1, 2], "2")
    assert shop.observer.told == [("applying", [1, 2]), ("committed", 2)]


def test_error_of_apply_undoes_everything(shop):
    """What apply raises is the cause of the halt, and neither effects nor cursor stay."""
    mine = Poison("mine")

    def apply(connection, page):
        """Write and fail."""
        write_page(connection, page)
        raise mine

    shop.feed.publish(event(1))
    with pytest.raises(Exception, match="mine") as caught:
        shop.run(apply, failures=Failures(tries=2))
    assert caught.value.__cause__ is mine
    assert (shop.landed(), shop.cursor()) == ([], "_first")
    assert shop.observer["failed"] == [("Poison", 1), ("Poison", 2)]
    assert shop.observer["raised"] == [("Poison",)] * 2
    assert shop.observer["committed"] == []


def test_tries_are_counted_anew_for_every_page(shop):
    """A page that was applied at last leaves all tries to the next, and to the one behind it."""
    failures = {1: 2, 2: 2, 3: 2}

    def apply(connection, one: Event):
        """Fail twice at each event."""
        write(connection, [one])
        if failures[one.data["n"]]:
            failures[one.data["n"]] -= 1
            raise Poison

    shop.feed.publish(event(1), event(2), event(3))
    shop.run(apply, limit=1, failures=Failures(tries=3))
    assert shop.landed() == [1, 2, 3]
    assert shop.observer["failed"] == [("Poison", 1), ("Poison", 2)] * 3


@pytest.mark.parametrize(
    ("act", "cursor"),
    [
        (lambda shop: shop.put("0"), "0"),
        (lambda shop: shop.put("1"), "1"),
        (lambda shop: shop.take_over(0, seconds=0.3), "1"),
    ],
    ids=["another cursor", "the same cursor", "a lost lease"],
)
def test_stale_page_is_fenced_before_apply_is_called(shop, act, cursor):
    """A page from another cursor, by an older right, or of a lost lease is not applied."""
    calls = []

    def apply(connection, page):
        """Remember the calls."""
        calls.append(page.previous_cursor)
        write_page(connection, page)

    shop.feed.publish(event(1), event(2))
    shop.put("1")
    rival = Rival(lambda: act(shop))
    shop.run(apply, lease=0.3, observer=rival)
    assert (calls, shop.landed()) == ([cursor], [2] if cursor == "1" else [1, 2])
    assert (rival["fenced"], rival["failed"]) == ([(0,)], [])


def test_lease_that_is_lost_while_apply_works_costs_the_commit(every_shop):
    """What apply has written when another process enters is rolled back, or the other waits."""
    shop, taken = every_shop, []

    def apply(connection, page):
        """Write, while another process tries to enter."""
        write_page(connection, page)
        if not taken and shop.several_write:
            rival = threading.Thread(target=shop.take_over, args=[0], kwargs={"seconds": 0.2})
            taken.append(rival)
            rival.start()
            rival.join(0.1)

    shop.feed.publish(event(1), event(2))
    shop.run(apply, limit=1, lease=0.3)
    for rival in taken:
        rival.join(DEADLINE)
    assert shop.landed() == [1, 2]


# What apply is given.


def test_sync_function_gets_a_connection_or_a_session(shop):
    """Both consumers call ordinary functions, with what they ask for."""

    def with_connection(connection: Connection, page: PendingPage) -> None:
        """Take a connection."""
        assert isinstance(connection, Connection)
        assert isinstance(page, PendingPage)
        write(connection, page.events)

    def with_session(session: Session, one: Event) -> None:
        """Take a session, and leave it to it when to write."""
        session.add(Effect(n=one.data["n"]))

    for number, apply in enumerate([with_connection, with_session]):
        shop.feed.publish(event(10 * number), event(10 * number + 1))
        shop.run(apply)
    assert (shop.landed(), shop.cursor()) == ([0, 1, 10, 11], "4")


def test_async_function_gets_a_connection_a_session_or_the_events(async_shop):
    """An AsyncConsumer calls coroutine functions, with what they ask for."""

    async def with_connection(connection, page) -> None:
        """Take a connection."""
        assert isinstance(connection, AsyncConnection)
        await connection.run_sync(write, page.events)

    async def with_session(session: AsyncSession, one: Event) -> None:
        """Take a session, and leave it to it when to write."""
        session.add(Effect(n=one.data["n"]))

    async def with_list(connection: AsyncConnection, events: list[Event]) -> None:
        """Take a list."""
        await connection.run_sync(write, events)

    for number, apply in enumerate([with_connection, with_session, with_list]):
        async_shop.feed.publish(event(10 * number), event(10 * number + 1))
        async_shop.run(apply)
    assert async_shop.landed() == [0, 1, 10, 11, 20, 21]


class Audited(Session):
    """A session class of the caller's own."""


def test_sessions_are_made_as_the_caller_says(shop):
    """A sessionmaker's sessions are used, bound or not; so is a class named by an annotation."""
    made = []

    def apply(session, page):
        """Write through the session."""
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


INSERT = "INSERT INTO effects (arrival, n) VALUES (%s, %s)"


@pytest.mark.parametrize("failures", [Failures(tries=1), ASIDE], ids=["halt", "aside"])
def test_psycopg_connection_is_the_one_of_the_transaction(postgresql_shop, failures):
    """What goes through the plain connection is committed and undone with the cursor."""
    shop, poison = postgresql_shop, []

    def plain(connection: psycopg.Connection, one: Event) -> None:
        """Write without SQLAlchemy."""
        connection.execute(INSERT, (one.data["n"], one.data["n"]))
        with connection.transaction():
            connection.execute("SELECT 1")
        if one.data["n"] in poison:
            connection.execute(INSERT, (100, None))

    async def async_plain(connection: psycopg.AsyncConnection, one: Event) -> None:
        """Do the same."""
        await connection.execute(INSERT, (one.data["n"], one.data["n"]))
        if one.data["n"] in poison:
            await connection.execute(INSERT, (100, None))

    apply = async_plain if shop.is_async else plain
    shop.feed.publish(event(1), event(2))
    shop.run(apply, failures=failures)
    assert (shop.landed(), shop.cursor()) == ([1, 2], "2")
    poison.append(4)
    shop.feed.publish(event(3), event(4), event(5))
    if failures is ASIDE:
        shop.run(apply, failures=failures)
        assert (shop.landed(), shop.letters()) == ([1, 2, 3, 5], [(4, "failed", 1)])
    else:
        with halting(psycopg.errors.NotNullViolation):
            shop.run(apply, failures=failures)
        assert (shop.landed(), shop.cursor()) == ([1, 2], "2")


def test_psycopg_connection_refuses_to_commit(postgresql_url):
    """The plain connection cannot be committed by apply."""

    def apply(connection: psycopg.Connection, one: Event) -> None:
        """Commit."""
        connection.execute(INSERT, (1, 1))
        connection.commit()

    with opened(postgresql_url) as shop:
        shop.feed.publish(event(1))
        with halting(psycopg.ProgrammingError, "commit"):
            shop.run(apply)
        assert (shop.landed(), shop.cursor()) == ([], "_first")


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
    """Neither effects nor cursor are committed by apply."""
    shop.feed.publish(event(1))
    with halting(ConfigurationError, r"must not commit|kept from committing"):
        shop.run(apply)
    assert (shop.landed(), shop.cursor()) == ([], "_first")


def test_savepoints_are_apply_s_own_business(every_shop):
    """Savepoints of apply may be released and rolled back."""

    def apply(connection: Connection, one: Event) -> None:
        """Use savepoints."""
        with connection.begin_nested():
            write(connection, [one])
        with pytest.raises(Poison), connection.begin_nested():
            write(connection, [one])
            raise Poison

    every_shop.feed.publish(event(1), event(2))
    every_shop.run(apply)
    assert every_shop.landed() == [1, 2]


@pytest.mark.parametrize("kind", [Connection, Session])
@pytest.mark.parametrize("raises", [False, True])
def test_rollback_by_apply_is_an_error(shop, kind, raises):
    """What apply has rolled back does not count as applied; what it raises behind that passes."""

    def apply(transaction: kind, page: PendingPage) -> None:
        """Roll back."""
        write(transaction, page.events)
        transaction.rollback()
        if raises:
            raise Poison

    shop.feed.publish(event(1))
    with halting(Poison if raises else ConfigurationError, "" if raises else "rolled back"):
        shop.run(apply)
    assert (shop.landed(), shop.cursor()) == ([], "_first")


def test_rollback_of_everything_is_no_failure_of_one_event(shop):
    """What apply has rolled back takes the letters with it, so that nothing goes on."""
    calls = []

    def apply(connection: Connection, one: Event) -> None:
        """Fail, and at the second event roll everything back first."""
        calls.append(one.data["n"])
        if one.data["n"] == 2:
            connection.rollback()
        raise Poison

    shop.feed.publish(event(1), event(2), event(3))
    with halting(ConfigurationError, "rolled back"):
        shop.run(apply, failures=ASIDE)
    assert calls == [1, 1, 2]
    assert (shop.letters(), shop.cursor()) == ([], "_first")


@pytest.mark.parametrize("raises", [False, True])
def test_transaction_that_was_ended_in_plain_sql_halts_for_good(every_shop, raises):
    """A COMMIT as text cannot be kept back, but is found out, and nothing goes on behind it."""
    calls = []

    def apply(connection: Connection, one: Event) -> None:
        """Commit as text."""
        calls.append(one.data["n"])
        write(connection, [one])
        connection.execute(text("COMMIT"))
        if raises:
            raise Poison

    every_shop.feed.publish(event(1), event(2))
    with halting(ConfigurationError, "has ended before apply did"):
        every_shop.run(apply, limit=1, failures=Failures(tries=2, then="set-aside"))
    assert (calls, every_shop.landed(), every_shop.letters()) == ([1], [1], [])


@pytest.mark.parametrize(
    ("end", "complaint"),
    [
        (lambda connection: connection.execute(text("CREATE TABLE other (n int)")), "themselves"),
        (lambda connection: connection.connection.driver_connection.rollback(), "ended before"),
    ],
    ids=["a table is created", "a deadlock was swallowed"],
)
def test_transaction_that_mariadb_has_ended_is_found_out(mariadb_url, end, complaint):
    """MariaDB commits when a table is created, and undoes everything at a deadlock."""

    def apply(connection: Connection, one: Event) -> None:
        """Lose the transaction, and go on."""
        end(connection)
        write(connection, [one])

    with opened(mariadb_url) as shop:
        shop.feed.publish(event(1))
        with halting(ConfigurationError, complaint):
            shop.run(apply)
        assert shop.landed() == []


@pytest.mark.parametrize("failures", [Failures(tries=1), ASIDE], ids=["halt", "aside"])
def test_error_that_apply_swallows_does_not_lose_the_page_in_silence(every_shop, failures):
    """PostgreSQL aborts the transaction at an error, and would then commit nothing."""
    shop = every_shop

    def apply(connection: Connection, one: Event) -> None:
        """Fail in the database at the second event, and go on."""
        write(connection, [one])
        if one.data["n"] == 2:
            with pytest.raises(IntegrityError):
                connection.execute(effects.insert().values(n=None))

    shop.feed.publish(event(1), event(2))
    if shop.engine.dialect.name != "postgresql":
        shop.run(apply, failures=failures)
        assert shop.landed() == [1, 2]
    elif failures is ASIDE:
        shop.run(apply, failures=failures)
        assert (shop.landed(), shop.letters()) == ([1], [(2, "failed", 1)])
    else:
        with halting(ConfigurationError, "PostgreSQL had aborted"):
            shop.run(apply, failures=failures)
        assert (shop.landed(), shop.cursor()) == ([], "_first")


def test_page_that_apply_commits_itself_is_an_error_of_apply(sync_shop):
    """A page is committed by the consumer that runs, and not by apply."""

    def apply(connection: Connection, page: PendingPage) -> None:
        """Commit the page a second time."""
        page.commit(connection)

    sync_shop.feed.publish(event(1))
    with halting(ConfigurationError, "must not commit the page"):
        sync_shop.run(apply)
    assert sync_shop.cursor() == "_first"


# Errors of the database.


@pytest.mark.parametrize("failures", [Failures(tries=1), ASIDE], ids=["halt", "aside"])
def test_violated_constraint_is_the_handler_s_error(every_shop, failures):
    """It halts, or is undone to the savepoint, through a connection and through a session."""
    shop = every_shop

    def with_connection(connection: Connection, one: Event) -> None:
        """Write, and violate a constraint at the second event."""
        write(connection, [one])
        if one.data["n"] == 2:
            connection.execute(effects.insert().values(n=None))

    def with_session(session: Session, one: Event) -> None:
        """Do the same, which shows when the session is flushed."""
        n = one.data["n"]
        session.add(Effect(n=None if n == 2 else n))

    for apply in (with_connection, with_session):
        shop.feed.publish(event(1), event(2), event(3))
        if failures is ASIDE:
            shop.run(apply, failures=failures)
        else:
            with halting(IntegrityError):
                shop.run(apply, failures=failures)
    assert shop.landed() == ([1, 3] * 2 if failures is ASIDE else [])
    assert shop.letters() == ([(2, "failed", 1)] * 2 if failures is ASIDE else [])


@pytest.fixture(params=["postgresql", "mariadb"])
def server_shop(request):
    """A shop over a database that is a server."""
    with opened(request.getfixturevalue(f"{request.param}_url")) as shop:
        yield shop


def lost(shop):
    """Make a function that loses the connection once; return it with what it has lost."""
    cut = []

    def apply(connection: Connection, one: Event) -> None:
        """Lose the connection, in the middle."""
        write(connection, [one])
        if not cut:
            cut.append(one.data["n"])
            kill(shop.engine, connection)
            write(connection, [one])

    return apply, cut


def test_lost_connection_is_no_failure_of_apply(server_shop):
    """A connection that is lost while apply works is the store's, and counts as no try."""
    shop = server_shop
    apply, cut = lost(shop)
    shop.feed.publish(event(1), event(2))
    shop.run(apply, attempts=2)
    assert (cut, shop.landed()) == ([1], [1, 2])
    assert (shop.observer["failed"], shop.observer["raised"]) == ([], [("StoreUnavailable",)])
    assert shop.observer["waited"] == [(0, "StoreUnavailable")]


def test_lost_connection_is_no_failure_of_a_letter(server_shop):
    """A dead letter whose transaction was lost is applied again."""
    shop = server_shop
    shop.feed.publish(event(1), event(2))
    shop.run(failing(1, 2), failures=ASIDE)
    shop.retry()
    shop.observer.told.clear()
    apply, cut = lost(shop)
    shop.run(apply, failures=ASIDE, attempts=2)
    assert (cut, shop.landed(), shop.letters()) == ([1], [1, 2], [])
    assert shop.observer["failed"] == []


@pytest.mark.parametrize("aside", [False, True])
def test_deadlock_is_no_failure_of_apply(server_shop, aside):
    """The transaction that gives way in a deadlock is tried again."""
    shop, threads = server_shop, []
    postgresql = shop.engine.dialect.name == "postgresql"
    with shop.engine.begin() as connection:
        connection.execute(effects.insert(), [{"arrival": -n, "n": n} for n in (1, 2)])

    def apply(connection: Connection, one: Event) -> None:
        """Lock two rows in the order that the rival does not."""
        if aside and not shop.observer["failed"]:
            raise Poison
        if threads:
            write(connection, [one])
            return
        if postgresql:
            connection.execute(text("SET LOCAL deadlock_timeout = '10ms'"))
        lock(connection, 1)
        threads.append(threading.Thread(target=lock, args=(rival, 1)))
        threads[0].start()
        until(lambda: is_blocked(shop.engine), "a session waits for a lock")
        try:
            lock(connection, 2)
        finally:
            threads[0].join(DEADLINE)
            rival.rollback()

    shop.feed.publish(event(3))
    with shop.engine.connect() as rival:
        if postgresql:
            rival.execute(text("SET LOCAL deadlock_timeout = '60s'"))
        # Of two, MariaDB sends away the one that has changed less.
        rival.execute(effects.insert(), [{"n": number} for number in range(100, 200)])
        lock(rival, 2)
        shop.run(apply, attempts=2, failures=ASIDE if aside else Failures(tries=1))
    assert len(threads) == 1
    assert (shop.landed(), shop.letters(), shop.cursor()) == ([2, 1, 3], [], "1")
    assert shop.observer["raised"] == [("Poison",)] * aside + [("StoreUnavailable",)]


def lock(connection, n):
    """Lock the row of an effect."""
    connection.execute(effects.update().where(effects.c.arrival == -n).values(k="locked"))


def is_blocked(engine):
    """Tell whether a session waits for a lock."""
    if engine.dialect.name == "postgresql":
        query = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid IN ("
        query += "SELECT pid FROM pg_stat_activity WHERE datname = current_database())"
    else:
        query = "SELECT count(*) FROM information_schema.processlist WHERE db = database() "
        query += "AND info LIKE 'UPDATE effects%%'"
    with engine.connect() as connection:
        return connection.exec_driver_sql(query).scalar()


class Interrupted(BaseException):
    """What is no Exception, as an interrupt is none."""


@pytest.mark.parametrize("aside", [False, True])
def test_interrupt_rolls_back_and_passes(shop, aside):
    """What is no Exception ends the run, is not set aside, and leaves nothing."""
    calls = []

    def apply(connection, page):
        """Be interrupted, at once or in the second try."""
        write_page(connection, page)
        calls.append(page.cursor)
        raise Poison if aside and len(calls) == 1 else Interrupted

    shop.feed.publish(event(1))
    with pytest.raises(Interrupted):
        shop.run(apply, failures=ASIDE)
    assert (len(calls), shop.landed(), shop.letters()) == (1 + aside, [], [])
    assert (shop.cursor(), shop.leases()) == ("_first", 0)


@pytest.mark.parametrize("lanes", [1, 4])
def test_cancelled_task_rolls_back(async_shop, lanes):
    """An apply that is cancelled leaves nothing of the page."""

    async def apply(connection, page) -> None:
        """Write, and be cancelled."""
        await write_page_async(connection, page)
        asyncio.current_task().cancel()
        await asyncio.sleep(DEADLINE)

    async_shop.feed.publish(event(1, "a"), event(2, "b"))
    with pytest.raises(asyncio.CancelledError):
        async_shop.run(apply, lanes=lanes)
    assert (async_shop.landed(), async_shop.cursor()) == ([], "_first")
