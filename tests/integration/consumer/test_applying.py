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
from harness.statements import add
from harness.stores import LOCK_WAITS, beside, outcome
from harness.waiting import DEADLINE, until
from sqlalchemy import Connection, text
from sqlalchemy import event as sql_event
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Session, sessionmaker

from zeroeventhub import Event, Failures, PendingPage
from zeroeventhub.errors import ConfigurationError, Halted, LeaseLost

ASIDE = Failures(tries=1, then="set-aside")


class Base(DeclarativeBase):
    """What the tests' classes are mapped on."""


class Effect(Base):
    """An effect, mapped."""

    __table__ = effects


@pytest.mark.parametrize("lanes", [1, 4])
def test_page_and_cursor_are_committed_together(either_shop, lanes):
    """A page whose events have one key takes one transaction, with the cursor in it."""
    shop = either_shop
    shop.feed.publish(event(1, "a"), event(2, "a"))
    shop.run(write_page, lanes=lanes)
    assert (shop.landed(), shop.cursor()) == ([1, 2], "2")
    assert shop.observer.told == [("applying", [1, 2]), ("committed", 2)]


def test_error_of_apply_undoes_everything(either_shop):
    """What apply raises is the cause of the halt, and neither effects nor cursor stay."""
    shop = either_shop
    mine = Poison("mine")

    def apply(connection, page):
        write_page(connection, page)
        raise mine

    shop.feed.publish(event(1))
    with pytest.raises(Halted, match="Poison") as caught:
        shop.run(apply, failures=Failures(tries=2))
    assert caught.value.__cause__ is mine
    assert (shop.landed(), shop.cursor()) == ([], "_first")
    assert shop.observer["failed"] == [("Poison", 1), ("Poison", 2)]
    assert shop.observer["raised"] == [("Poison",)] * 2
    assert shop.observer["committed"] == []


@pytest.mark.slow
def test_tries_are_counted_anew_for_every_page(shop):
    """A page that was applied at last leaves all tries to the next, and to those after it."""
    failures = {1: 2, 2: 2, 3: 2}

    def apply(connection, one: Event):
        write(connection, [one])
        if failures[one.data["n"]]:
            failures[one.data["n"]] -= 1
            raise Poison

    shop.feed.publish(event(1), event(2), event(3))
    shop.run(apply, limit=1, failures=Failures(tries=3))
    assert shop.landed() == [1, 2, 3]
    assert shop.observer["failed"] == [("Poison", 1), ("Poison", 2)] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "cursor", "lanes"),
    [
        (lambda shop: shop.put("0"), "0", 1),
        (lambda shop: shop.put("1"), "1", 2),
        (lambda shop: shop.take_over(0, seconds=0.3), "1", 1),
    ],
    ids=["another cursor", "the same cursor in lanes", "a lost lease"],
)
def test_stale_page_is_fenced_before_apply_is_called(either_shop, act, cursor, lanes):
    """A page from another cursor, by an older right, or of a lost lease is not applied."""
    shop, calls = either_shop, []

    def apply(connection, page):
        calls.append(page.previous_cursor)
        write_page(connection, page)

    shop.feed.publish(event(1, "d"), event(2, "d"), event(3, "a"))
    shop.put("1")
    rival = Rival(lambda: act(shop))
    shop.run(apply, lease=3, lanes=lanes, observer=rival)
    assert calls == [cursor] * lanes
    assert sorted(shop.landed()) == ([2, 3] if cursor == "1" else [1, 2, 3])
    assert rival["raised"] == [("Fenced",)] * lanes
    assert (rival["fenced"], rival["failed"]) == ([(0,)], [])


def test_lease_that_is_lost_while_apply_works_costs_the_commit(every_shop):
    """What apply has written when another process enters is rolled back, or the other waits."""
    shop, taken = every_shop, []

    def take_over():
        with suppress(LeaseLost):  # its own lease may run out while it waits for the commit
            shop.take_over(0, seconds=0.2)

    def apply(connection, page):
        write_page(connection, page)
        if not taken and shop.several_write:
            rival = threading.Thread(target=take_over)
            taken.append(rival)
            rival.start()
            rival.join(0.1)

    shop.feed.publish(event(1), event(2))
    shop.run(apply, limit=1, lease=0.3)
    for rival in taken:
        rival.join(DEADLINE)
    assert shop.landed() == [1, 2]


# What apply is given.


class Audited(Session):
    """A session class of the caller's own."""


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


def test_page_need_not_wait_for_the_disk(postgresql_shop):
    """Pages are committed as the consumer says; what is registered has been written before."""
    shop, seen, statements = postgresql_shop, [], []

    def apply(connection: Connection, page: PendingPage) -> None:
        seen.append(connection.scalar(text("SHOW synchronous_commit")))
        write_page(connection, page)

    engine = shop.async_engine.sync_engine if shop.is_async else shop.engine
    sql_event.listen(engine, "before_cursor_execute", lambda *told: statements.append(told[2]))
    shop.feed.publish(*map(event, range(4)))
    shop.run(apply, limit=2)
    shop.put("2")
    shop.run(apply, synchronous_commit=False, register_progress=True)
    assert seen == ["on", "on", "off"]
    assert "synchronous_commit TO on" in statements[statements.index("SELECT txid_current()") - 1]
    assert shop.cursor() == "4"


def test_sqlite_commits_to_the_disk(sync_shop):
    """What only PostgreSQL can do is refused elsewhere."""
    with pytest.raises(ConfigurationError, match="PostgreSQL"):
        sync_shop.run(write_page, synchronous_commit=False)


# What apply must not do.


def commit_in_silence(transaction, page):
    """Commit, and go on whatever comes of it."""
    with suppress(ConfigurationError):
        transaction.commit()


@pytest.mark.parametrize("kind", [Connection, Session])
@pytest.mark.parametrize(
    ("end", "cause", "complaint"),
    [
        (lambda given, _: given.commit(), ConfigurationError, "must not commit the transaction"),
        (commit_in_silence, ConfigurationError, "kept from committing"),
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
    with halting(ConfigurationError, "PostgreSQL had aborted"):
        shop.run(apply)
    assert shop.landed() == []
    shop.run(apply, failures=ASIDE)
    assert (shop.landed(), shop.letters()) == ([1], [(2, "failed", 1)])


# Errors of the database.


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


def test_full_disk_halts_and_sets_nothing_aside(sync_shop):
    """A page that no longer fits is rolled back whole, and applied when there is room."""
    shop, room = sync_shop, [2**30]
    shop.feed.publish(*[event(n, "x" * 3000) for n in range(30)])

    @sql_event.listens_for(shop.engine, "connect")
    def limit(connection, _):
        connection.execute(f"PRAGMA max_page_count = {room[-1]}")

    def run(pages):
        with shop.engine.connect() as connection:
            room.append(connection.exec_driver_sql("PRAGMA page_count").scalar() + pages)
        shop.engine.dispose()
        shop.run(write_page, limit=3, failures=ASIDE)

    for before in (0, 1):
        with pytest.raises((Halted, OperationalError), match=r"OperationalError|disk is full"):
            run(7)
        assert before < int(shop.cursor()) < 30
        assert (shop.landed(), shop.letters()) == ([*range(int(shop.cursor()))], [])
    run(2**20)
    assert (shop.landed(), shop.letters()) == ([*range(30)], [])


def lose_the_connection(engine, connection):
    """Lose the connection."""
    kill(engine, connection)
    connection.execute(text("SELECT 1"))


def lose_a_deadlock(engine, connection):
    """Lock two rows in the order that a rival does not, and give way."""

    def lock(connection, n):
        connection.execute(effects.update().where(effects.c.arrival == -n).values(k="locked"))

    with engine.connect() as rival:
        if engine.dialect.name == "postgresql":
            rival.execute(text("SET LOCAL deadlock_timeout = '60s'"))
            connection.execute(text("SET LOCAL deadlock_timeout = '10ms'"))
        # Of two, MariaDB sends away the one that has changed less.
        rival.execute(effects.insert(), [{"n": number} for number in range(100, 200)])
        lock(rival, 2)
        lock(connection, 1)
        waiting = beside(lock, rival, 1)
        with engine.connect() as other:
            query = text(LOCK_WAITS[engine.dialect.name])
            until(lambda: other.scalar(query), "the rival waits for a lock")
        try:
            lock(connection, 2)
        finally:
            outcome(waiting)
            rival.rollback()


@pytest.mark.parametrize(
    ("database", "trouble", "of_letter"),
    [
        ("postgresql", lose_the_connection, False),
        ("postgresql", lose_a_deadlock, True),
        ("mariadb", lose_the_connection, True),
        ("mariadb", lose_a_deadlock, False),
    ],
)
def test_trouble_of_the_store_is_no_failure_of_apply(request, database, trouble, of_letter):
    """A transaction of a page or a letter that is lost is tried again, and counts as no try."""
    lost = []

    def apply(connection: Connection, one: Event) -> None:
        write(connection, [one])
        if not lost:
            lost.append(one.data["n"])
            trouble(shop.engine, connection)

    with opened(request.getfixturevalue(f"{database}_url")) as shop:
        add(shop.engine, effects, [{"arrival": -n, "n": -n} for n in (1, 2)])
        shop.feed.publish(event(1), event(2))
        if of_letter:
            shop.run(failing(1, 2), failures=ASIDE)
            shop.retry()
            shop.observer.told.clear()
        shop.run(apply, failures=ASIDE, attempts=2)
        assert (lost, shop.landed(), shop.letters()) == ([1], [-2, -1, 1, 2], [])
        assert (shop.observer["failed"], shop.observer["raised"]) == ([], [("StoreUnavailable",)])
        assert shop.observer["waited"] == [(0, "StoreUnavailable")]


class Interrupted(BaseException):
    """What is no Exception, as an interrupt is none."""


def test_interrupt_rolls_back_and_passes(either_shop):
    """What is no Exception ends the run at once, and leaves nothing."""
    shop, calls = either_shop, []

    def apply(connection, page):
        write_page(connection, page)
        calls.append(page.cursor)
        raise Interrupted

    shop.feed.publish(event(1))
    with pytest.raises(Interrupted):
        shop.run(apply, failures=ASIDE)
    assert (len(calls), shop.landed(), shop.letters()) == (1, [], [])
    assert (shop.cursor(), shop.leases()) == ("_first", 0)


@pytest.mark.parametrize("lanes", [1, 4])
def test_cancelled_task_rolls_back(async_shop, lanes):
    """An apply that is cancelled leaves nothing of the page."""

    async def apply(connection, page) -> None:
        await write_page_async(connection, page)
        asyncio.current_task().cancel()
        await asyncio.sleep(DEADLINE)

    async_shop.feed.publish(event(1, "a"), event(2, "b"))
    with pytest.raises(asyncio.CancelledError):
        async_shop.run(apply, lanes=lanes)
    assert (async_shop.landed(), async_shop.cursor()) == ([], "_first")
