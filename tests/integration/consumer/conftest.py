"""Shops whose events a consumer applies, and what holds for every run."""

import gc
import threading

import pytest
from harness.deliveries import opened
from harness.waiting import until


def _shop_over(*cases, rarely=()):
    """Make a fixture: a shop, consumed by each driver over each database that the cases name."""
    params = [*cases, *(pytest.param(case, marks=pytest.mark.test_all) for case in rarely)]

    @pytest.fixture(params=params)
    def shop(request):
        driver, database = request.param.split("-")
        url = request.getfixturevalue(f"{database}_url")
        with opened(url, is_async=driver == "async") as shop:
            yield shop

    return shop


ON_SERVERS = ["sync-postgresql", "async-postgresql", "sync-mariadb", "async-mariadb"]
EVERY = ["sync-sqlite", "async-postgresql", "sync-mariadb"]

# What is the same with and without asyncio, and over any database; then what may differ by either.
shop = _shop_over("sync-sqlite", rarely=["async-sqlite", *ON_SERVERS])
either_shop = _shop_over("sync-sqlite", "async-sqlite")
every_shop = _shop_over(*EVERY, rarely=["async-sqlite", "sync-postgresql", "async-mariadb"])
sync_shop = _shop_over("sync-sqlite")
async_shop = _shop_over("async-sqlite")
server_shop = _shop_over(*ON_SERVERS)
sync_server_shop = _shop_over("sync-postgresql", "sync-mariadb")
postgresql_shop = _shop_over("sync-postgresql", rarely=["async-postgresql"])


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
