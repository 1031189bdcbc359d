"""Checks of handlers: the right ones pass, and each mistake that is planted is found."""

import asyncio
from uuid import uuid4

import pytest
import sqlalchemy as sa
from harness.stores import empty_store
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from zeroeventhub import Event
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.testing import async_check_handler, check_handler, sqlite_engine, store_of


class Base(DeclarativeBase):
    """The tables of the handlers."""


class Invoice(Base):
    """An invoice, numbered by the database."""

    __tablename__ = "invoices"

    id: Mapped[int] = mapped_column(primary_key=True)
    order: Mapped[int]
    note: Mapped[str | None] = mapped_column(sa.String(40))


class Total(Base):
    """How much a customer has ordered."""

    __tablename__ = "totals"

    customer: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    orders: Mapped[int]


tables = Base.metadata
invoices, totals = Invoice.__table__, Total.__table__
EVENTS = [{"order": n, "customer": ("ada", "bob")[n % 2]} for n in range(5)]


def invoice(connection: sa.Connection, event: Event) -> None:
    """Write an invoice, and count it: right, if each event comes once."""
    connection.execute(invoices.insert().values(order=event.data["order"]))
    customer = event.data["customer"]
    counted = totals.update().where(totals.c.customer == customer)
    if not connection.execute(counted.values(orders=totals.c.orders + 1)).rowcount:
        connection.execute(totals.insert().values(customer=customer, orders=1))


def check(apply, events=EVENTS, **options):
    """Check a handler in tables that are made for it."""
    check_handler(apply, events, prepare=tables.create_all, **options)


def check_async(apply, events=EVENTS, **options):
    """Check a handler in an asynchronous database."""
    asyncio.run(async_check_handler(apply, events, prepare=tables.create_all, **options))


def broken(sentence):
    """Expect that a check says what broke."""
    return pytest.raises(AssertionError, match=sentence)


# Right handlers.


def upsert(session: Session, event: Event) -> None:
    """Write an invoice unless it is there, which is right however often the event comes."""
    number = event.data["order"]
    if session.scalar(sa.select(Invoice).where(Invoice.order == number)) is None:
        session.add(Invoice(order=number))


def test_right_handler_passes():
    """What writes only through its transaction passes, on several partitions as well."""
    check(invoice)
    check(invoice, [EVENTS[:1], EVENTS[1:3]])
    check(upsert, EVENTS[:2], twice=True)
    check(upsert, EVENTS[:2], sessions=Session)


def invoice_together(connection: sa.Connection, events: list[Event]) -> None:
    """Write the invoices of a page by one call of the driver."""
    connection.execute(invoices.insert(), [{"order": event.data["order"]} for event in events])


def test_right_handler_of_whole_pages_passes():
    """After a kill at a statement of many rows, nothing of it holds a lock."""
    check(invoice_together, EVENTS[:4])
    check_async(invoice_together, EVENTS[:2])


async def invoice_async(connection: AsyncConnection, event: Event) -> None:
    """Write an invoice, asynchronously."""
    await connection.run_sync(invoice, event)


async def in_session_async(session: AsyncSession, event: Event) -> None:
    """Write an invoice through a session, asynchronously."""
    session.add(Invoice(order=event.data["order"]))


def test_right_async_handler_passes():
    """Coroutine functions are checked in an asynchronous database, and ordinary ones as well."""
    check_async(invoice_async, EVENTS[:2], page_events=1)
    check_async(in_session_async, EVENTS[:1])
    check_async(invoice, EVENTS[:1])


def test_handler_passes_in_a_database_of_ones_own(shop_engine):
    """On each database, the tables are emptied for each run, and empty in the end."""
    store = empty_store(shop_engine)
    tables.drop_all(shop_engine)
    other = sa.inspect(shop_engine).get_table_names()
    assert {*other} == {table.name for table in store.tables.all()}
    check(invoice, EVENTS[:3], store=store)
    with shop_engine.connect() as connection:
        for table in (invoices, totals, *store.tables.all()):
            assert not connection.scalar(sa.select(sa.func.count()).select_from(table))
    tables.drop_all(shop_engine)


def test_rows_of_others_are_not_deleted():
    """A database that is in use is refused, and stays as it is."""
    store = store_of(tables.create_all)
    with store.engine.begin() as connection:
        connection.execute(totals.insert().values(customer="cy", orders=7))
    with pytest.raises(ConfigurationError, match="totals has rows"):
        check(invoice, store=store)
    with store.engine.connect() as connection:
        assert connection.scalar(sa.select(totals.c.orders)) == 7


def test_rows_that_a_handler_expects_are_prepared():
    """What `prepare` writes is there before each run."""

    def prepare(connection):
        tables.create_all(connection)
        connection.execute(totals.insert().values(customer="ada", orders=0))

    def count(connection: sa.Connection, event: Event) -> None:
        counted = totals.update().values(orders=totals.c.orders + 1)
        assert connection.execute(counted).rowcount == 1

    check_handler(count, EVENTS, prepare=prepare)


# Planted mistakes.


@pytest.fixture
def other():
    """Another database, with the same tables."""
    engine = sqlite_engine()
    tables.create_all(engine)
    return engine


def test_write_outside_of_the_transaction_is_found(other):
    """A statement by another connection is named, though each event came once."""

    def apply(connection: sa.Connection, event: Event) -> None:
        invoice(connection, event)
        with other.begin() as outside:
            outside.execute(invoices.insert().values(order=1))

    with broken(r"wrote past the transaction .* 'INSERT INTO invoices"):
        check(apply)

    async def apply_async(connection: AsyncConnection, event: Event) -> None:
        await connection.run_sync(apply, event)

    with broken("wrote past the transaction"):
        check_async(apply_async)


@pytest.mark.parametrize(
    "statement",
    [
        'WITH new AS (SELECT 1) INSERT INTO invoices ("order") SELECT 1',
        'WITH old AS (SELECT 1) UPDATE invoices SET "order" = 2',
        "WITH old AS (SELECT 1) DELETE FROM invoices",
        '/* of a shop */ -- and more\nINSERT INTO invoices ("order") VALUES (1)',
    ],
)
def test_write_after_other_words_is_found(other, statement):
    """A statement that writes need not begin with the word for that."""

    def apply(connection: sa.Connection, event: Event) -> None:
        invoice(connection, event)
        with other.begin() as outside:
            outside.exec_driver_sql(statement)

    with broken("wrote past the transaction"):
        check(apply)


def test_write_by_another_connection_to_the_same_database_is_found():
    """It is named before it waits for the lock of the transaction itself."""
    store = store_of()

    def apply(connection: sa.Connection, event: Event) -> None:
        with store.engine.begin() as outside:
            outside.execute(invoices.insert().values(order=1))

    with broken("wrote past the transaction"):
        check(apply, store=store)


def test_look_up_by_another_connection_is_right(other):
    """A handler may read what it likes."""

    def apply(connection: sa.Connection, event: Event) -> None:
        with other.connect() as outside:
            outside.scalar(sa.select(invoices.c.order))
        invoice(connection, event)

    check(apply, EVENTS[:2])


def commit(connection: sa.Connection, event: Event) -> None:
    """Write an invoice, and commit."""
    invoice(connection, event)
    connection.commit()


def commit_below(connection: sa.Connection, event: Event) -> None:
    """Write an invoice, and commit through the driver."""
    invoice(connection, event)
    connection.connection.commit()


async def commit_async(connection: AsyncConnection, event: Event) -> None:
    """Write an invoice and commit, asynchronously."""
    await connection.run_sync(invoice, event)
    await connection.commit()


def test_commit_is_found():
    """A handler that commits fails the check, whether by SQLAlchemy or by the driver."""
    with broken("apply must not commit"):
        check(commit)
    with broken("has ended before apply did"):
        check(commit_below)
    with broken("apply must not commit"):
        check_async(commit_async)


class Counting:
    """A handler with a count in memory."""

    def __init__(self):
        self.count = 0

    def __call__(self, connection: sa.Connection, event: Event) -> None:
        """Write the count in place of the one before."""
        self.count += 1
        connection.execute(totals.delete())
        connection.execute(totals.insert().values(customer="all", orders=self.count))

    def start(self):
        self.count = 0


def test_state_in_memory_is_found():
    """It differs the second time; if it is lost at the start, it differs after a kill."""
    with broken("applied again, in an emptied database, and the table totals lacked rows: .*5"):
        check(Counting())
    counting = Counting()
    with broken(r"was killed after the .*, and started again, and the table totals lacked"):
        check(counting, start=counting.start)


def test_memory_that_outlives_a_rollback_is_found():
    """A handler that remembers what it has seen drops events that were rolled back."""
    seen = set()

    def apply(connection: sa.Connection, event: Event) -> None:
        if event.data["order"] not in seen:
            seen.add(event.data["order"])
            invoice(connection, event)

    with broken(r"was rolled back after the statement .*, and the same process tried again, and"):
        check(apply, start=seen.clear)


def test_effects_in_memory_alone_are_found():
    """A handler without any effect in the database is no handler to be checked."""
    seen = []
    with broken("left no effect in the database"):
        check(lambda connection, page: seen.extend(page.events))


def test_effects_that_differ_each_time_are_read_otherwise():
    """Random values fail the check, which `effects` leaves out."""

    def apply(connection: sa.Connection, event: Event) -> None:
        row = {"order": event.data["order"], "note": str(uuid4())}
        connection.execute(invoices.insert().values(row))

    def effects(connection):
        return connection.scalars(sa.select(invoices.c.order)).all()

    with broken("give `effects`"):
        check(apply)
    with broken(r"Each event came twice, and the effects were \[0, 0, 1, 1.* instead of \[0, 1, "):
        check(apply, EVENTS[:3], effects=effects, twice=True)


def test_events_that_come_twice_are_found():
    """A handler that counts is only right where each event comes once."""
    with broken(
        "Each event came twice, and the table invoices lacked rows: .* had too many rows: "
    ):
        check(invoice, EVENTS[:2], twice=True)


def strict(connection: sa.Connection, event: Event) -> None:
    """Refuse events without an order, after a first effect."""
    connection.execute(totals.insert().values(customer=str(uuid4()), orders=1))
    connection.execute(invoices.insert().values(order=event.data["order"]))


def orders(connection):
    """Read the effects of `strict`, without its random names."""
    count = connection.scalar(sa.select(sa.func.count()).select_from(totals))
    return count, connection.scalars(sa.select(invoices.c.order)).all()


def test_poison_is_set_aside():
    """Events that the handler refuses become dead letters, and leave no effect."""
    check(strict, EVENTS[:3], effects=orders, poison=[{"customer": "ada"}])


def test_poison_that_is_swallowed_is_found():
    """An event that ought to be refused, and is not, is named."""

    def apply(connection: sa.Connection, event: Event) -> None:
        if "order" in event.data:
            invoice(connection, event)

    with broken(r"raised nothing at \{\"customer\":\"ada\"\}"):
        check(apply, EVENTS[:2], poison=[{"customer": "ada"}])


def test_good_event_that_is_refused_beside_poison_is_found():
    """A handler that a poison event spoils for those after it is found."""
    spoilt = []

    def apply(connection: sa.Connection, event: Event) -> None:
        if spoilt or "order" not in event.data:
            spoilt.append(event)
            raise ValueError("This cannot be applied.")
        invoice(connection, event)

    with broken("the handler also refused"):
        check(apply, EVENTS[:4], poison=[{"customer": "ada"}])


def test_error_without_a_kill_is_reported():
    """The check fails with the error that a handler raises at a good event."""

    def apply(connection: sa.Connection, event: Event) -> None:
        raise KeyError("amount")

    with broken("Nothing went wrong, and yet .* KeyError: 'amount'"):
        check(apply)
