"""Shops whose events a consumer applies, and what holds for every run."""

import gc
import threading

import pytest
from harness.deliveries import opened
from harness.waiting import until


def _opened(request, case):
    driver, database = case.split("-")
    return opened(request.getfixturevalue(f"{database}_url"), is_async=driver == "async")


@pytest.fixture(
    params=[
        "sync-sqlite",
        *(
            pytest.param(f"{driver}-{database}", marks=pytest.mark.test_all)
            for driver in ("sync", "async")
            for database in ("sqlite", "postgresql", "mariadb")
            if (driver, database) != ("sync", "sqlite")
        ),
    ]
)
def shop(request):
    """A shop for what is the same with and without asyncio, and over any database."""
    with _opened(request, request.param) as shop:
        yield shop


@pytest.fixture(params=["sync-sqlite", "async-sqlite"])
def either_shop(request):
    """A shop, consumed with and without asyncio."""
    with _opened(request, request.param) as shop:
        yield shop


@pytest.fixture
def sync_shop(sqlite_url):
    """A shop, consumed without asyncio."""
    with opened(sqlite_url) as shop:
        yield shop


@pytest.fixture
def async_shop(sqlite_url):
    """A shop, consumed with asyncio."""
    with opened(sqlite_url, is_async=True) as shop:
        yield shop


@pytest.fixture(
    params=[
        *["sync-sqlite", "async-postgresql", "sync-mariadb"],
        *(
            pytest.param(case, marks=pytest.mark.test_all)
            for case in ("async-sqlite", "sync-postgresql", "async-mariadb")
        ),
    ]
)
def every_shop(request):
    """A shop over each database in turn, consumed with or without asyncio."""
    with _opened(request, request.param) as shop:
        yield shop


@pytest.fixture(params=["sync", pytest.param("async", marks=pytest.mark.test_all)])
def postgresql_shop(request, postgresql_url):
    """A shop over PostgreSQL, consumed with or without asyncio."""
    with opened(postgresql_url, is_async=request.param == "async") as shop:
        yield shop


@pytest.fixture(autouse=True)
def _nothing_left(caplog, monkeypatch):
    """A run leaves no thread, and no error of a task that was lost.

    Only threads count that the test or a thread of its own has started: in a process that has run
    Spark, a JVM that collects garbage makes Python start a thread that stays, in whatever test.
    """
    started, start = {threading.current_thread()}, threading.Thread.start

    def note(thread):
        if threading.current_thread() in started:
            started.add(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", note)
    yield
    started.remove(threading.current_thread())
    gc.collect(0)  # a task that was lost says so when it is collected
    until(lambda: not any(one.is_alive() for one in started), "all threads of a test have ended")
    assert [one.getMessage() for one in caplog.records if one.name == "asyncio"] == []
