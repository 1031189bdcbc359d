"""What a store takes for a transaction of its caller."""

from contextlib import closing

import pytest
from harness.deliveries import effects, event, halting, opened, write_page, write_page_async
from harness.engines import async_url, connected, driver_connection
from sqlalchemy import NullPool, create_engine, inspect
from sqlalchemy.event import listen
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from zeroeventhub import CursorStore, Failures
from zeroeventhub.errors import ConfigurationError


def test_session_of_a_thread_commits_a_page(sqlite_url):
    """A scoped session, such as that of Flask-SQLAlchemy, is a session."""
    with opened(sqlite_url) as shop:
        shop.feed.publish(event(1))
        session = scoped_session(sessionmaker(shop.engine))
        page = shop.page()
        page.insert_into(effects, session)
        page.commit(session)
        session.commit()
        assert shop.landed() == [1]


@pytest.mark.parametrize("database", ["sqlite", "postgresql", "mariadb"])
def test_tables_are_created_through_the_driver(request, database):
    """A migration that has the driver's connection alone creates the tables with it.

    The engine has never been connected, and does not know its server yet.
    """
    url = request.getfixturevalue(f"{database}_url")
    store = CursorStore(create_engine(url))
    with closing(driver_connection(url)) as connection:
        store.create_tables(connection)
        connection.commit()
    assert inspect(store.engine).has_table("zeroeventhub_cursors")
    store.engine.dispose()


def test_other_transactions_are_refused(sqlite_url, postgresql_url):
    """What is no transaction of the store's database is refused, with what is."""
    with opened(sqlite_url) as shop, closing(driver_connection(postgresql_url)) as elsewhere:
        shop.feed.publish(event(1))
        for wrong in (None, "a connection", elsewhere, shop.engine, Session):
            with pytest.raises(ConfigurationError, match="takes part in the transaction of SQLA"):
                shop.page().commit(wrong)


AUTOCOMMIT = {
    "sqlite": lambda connection: setattr(connection, "isolation_level", None),
    "postgresql": lambda connection: setattr(connection, "autocommit", True),
    "mariadb": lambda connection: connection.query("SET autocommit = 1"),
}


@pytest.mark.parametrize("database", AUTOCOMMIT)
def test_page_is_committed_in_a_transaction_only(request, database):
    """A connection that commits each statement by itself is refused until it has begun one."""
    url = request.getfixturevalue(f"{database}_url")
    with opened(url) as shop, closing(driver_connection(url)) as connection:
        shop.feed.publish(event(1))
        AUTOCOMMIT[database](connection)
        page, cursor = shop.page(), connection.cursor()
        for refused in (page.commit, page.unseen, lambda alone: page.insert_into(effects, alone)):
            with pytest.raises(ConfigurationError, match="begin a transaction before"):
                refused(connection)
        cursor.execute("BEGIN")
        page.commit(connection)
        page.insert_into(effects, connection)
        cursor.execute("ROLLBACK")
        assert shop.landed() == []
        cursor.execute("BEGIN")
        page.commit(connection)
        page.insert_into(effects, connection)
        cursor.execute("COMMIT")
        assert shop.landed() == [1]
        store = CursorStore(shop.engine)
        store.create_tables(connection)


BY_DRIVER = {
    "sqlite": {"isolation_level": None},
    "postgresql": {"autocommit": True},
    "mariadb": {"autocommit": True},
}


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("database", BY_DRIVER)
def test_driver_that_commits_each_statement_is_refused(request, database, is_async):
    """An engine whose driver does so by an option of its own is refused before anything is read."""
    url, options = request.getfixturevalue(f"{database}_url"), BY_DRIVER[database]
    with opened(url, is_async=is_async) as shop, connected(url, **options) as engine:
        shop.feed.publish(event(1))
        shop.store = CursorStore(engine)
        if is_async:
            shop.async_engine = create_async_engine(
                async_url(url), poolclass=NullPool, connect_args=options
            )
        else:
            with pytest.raises(ConfigurationError, match="the driver's own autocommit"):
                shop.page()
        with pytest.raises(ConfigurationError, match="the driver's own autocommit"):
            shop.run(write_page)
        assert (shop.feed.asked, shop.cursor(), shop.landed()) == ([], None, [])


def test_listener_that_begins_transactions_may_replace_the_driver(sqlite_url):
    """A driver of SQLite that begins no transactions is taken where a listener begins them."""
    with opened(sqlite_url) as shop, connected(sqlite_url, isolation_level=None) as engine:
        listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        shop.feed.publish(event(1))
        shop.store = CursorStore(engine)
        shop.run(write_page)
        assert shop.landed() == [1]


MADE = {
    "made with it": lambda engine, level: create_engine(engine.url, isolation_level=level),
    "given it": lambda engine, level: engine.execution_options(isolation_level=level),
}


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "autocommit"])
@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_engine_without_transactions_is_refused(sqlite_url, make, level):
    """At AUTOCOMMIT the cursor would move before the effects: a loop and `run` refuse it."""
    with opened(sqlite_url) as shop:
        shop.feed.publish(event(1))
        page, engine = shop.page(), make(shop.engine, level)
        for begin in (engine.connect, lambda: Session(engine)):
            with begin() as transaction, pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
                page.commit(transaction)
        shop.store = CursorStore(engine)
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            shop.run(write_page)
        assert (shop.cursor(), shop.landed()) == ("_first", [])
        engine.dispose()


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("database", AUTOCOMMIT)
def test_sessions_without_transactions_are_refused(request, database, is_async):
    """Where the caller's sessions commit each statement, the cursor moves past no page."""
    with opened(request.getfixturevalue(f"{database}_url"), is_async=is_async) as shop:
        shop.feed.publish(event(1), event(2))
        engine = shop.async_engine if is_async else shop.engine
        alone = engine.execution_options(isolation_level="AUTOCOMMIT")
        sessions = async_sessionmaker(alone) if is_async else sessionmaker(alone)
        apply = write_page_async if is_async else write_page
        with halting(ConfigurationError, "AUTOCOMMIT"):
            shop.run(apply, sessions=sessions, failures=Failures(1, "set-aside"))
        assert (shop.cursor(), shop.landed()) == ("_first", [])
