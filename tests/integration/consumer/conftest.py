"""Shops whose events a consumer applies, and what holds for every run."""

import gc
import threading

import pytest
from harness.deliveries import opened
from harness.waiting import until

DRIVERS = ["sync", "async"]


@pytest.fixture(params=DRIVERS)
def shop(request, any_database_url):
    """A shop, consumed with and without asyncio."""
    with opened(any_database_url, is_async=request.param == "async") as shop:
        yield shop


@pytest.fixture
def sync_shop(any_database_url):
    """A shop, consumed without asyncio."""
    with opened(any_database_url) as shop:
        yield shop


@pytest.fixture
def async_shop(any_database_url):
    """A shop, consumed with asyncio."""
    with opened(any_database_url, is_async=True) as shop:
        yield shop


@pytest.fixture(
    params=[
        *["sync-sqlite", "sync-postgresql", "sync-mariadb", "async-sqlite"],
        pytest.param("async-postgresql", marks=pytest.mark.test_all),
        pytest.param("async-mariadb", marks=pytest.mark.test_all),
    ]
)
def every_shop(request):
    """A shop over each database in turn, consumed with and without asyncio."""
    driver, database = request.param.split("-")
    with opened(request.getfixturevalue(f"{database}_url"), is_async=driver == "async") as shop:
        yield shop


@pytest.fixture(params=DRIVERS)
def postgresql_shop(request, postgresql_url):
    """A shop over PostgreSQL, consumed with and without asyncio."""
    with opened(postgresql_url, is_async=request.param == "async") as shop:
        yield shop


@pytest.fixture(autouse=True)
def _nothing_left(caplog):
    """A run leaves no thread, and no error of a task that was lost."""
    before = set(threading.enumerate())
    yield
    gc.collect(0)
    until(lambda: set(threading.enumerate()) <= before, "all threads of a test have ended")
    assert [one.getMessage() for one in caplog.records if one.name == "asyncio"] == []
