"""A feed that several processes serve."""

import os
import re
import signal
import sys
import time
from pathlib import Path

import httpx
import pytest
from harness.command_line import PATIENCE, logged
from harness.guides import block
from harness.statements import add, execute, scalars
from harness.stores import new_store
from harness.waiting import until
from sqlalchemy import JSON, Column, Integer, MetaData, Table, create_engine, insert, text

from zeroeventhub import Client, Consumer

WORKERS = Path(__file__).parents[2] / "examples" / "workers"
EVENTS = 400
LONG = 1.5  # seconds after which a writer that is open is named
orders = Table("orders", MetaData(), Column("id", Integer, primary_key=True), Column("data", JSON))
SERVERS = {
    "uvicorn": ["uvicorn", "--app-dir", WORKERS, "--port", "0", "--workers", "4"],
    "gunicorn": [
        *["gunicorn", "--config", WORKERS / "gunicorn.conf.py", "--no-control-socket"],
        *["--pythonpath", WORKERS, "--bind", "127.0.0.1:0"],
    ],
}


@pytest.fixture(params=["gunicorn", pytest.param("uvicorn", marks=pytest.mark.test_all)])
def server(request, postgresql, postgresql_url, tmp_path):
    """The example, served by four workers, with 400 events."""
    orders.metadata.create_all(postgresql)
    add(postgresql, orders, [{"data": {"n": n}} for n in range(EVENTS)])
    (tmp_path / "metrics").mkdir()
    command = [sys.executable, "-m", *map(str, SERVERS[request.param]), "publisher:app"]
    places = {"SHOP": postgresql_url, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "metrics")}
    with logged(command, tmp_path / "log", **places) as running:
        until(lambda: len(workers_of(running)) == 4, "four workers run", PATIENCE)
        yield running


def workers_of(server):
    """The processes that serve: those that have opened the folder of metrics."""
    tell = re.compile(r"Started server process \[(\d+)\]")
    started = map(int, tell.findall(server.log.read_text()))
    return [pid for pid in started if Path(f"/proc/{pid}").exists()]


def assert_scrapes_are_whole(url):
    """Show that a scrape has the events of all workers and the horizon, whichever it meets."""
    page = f"{url}/orders/events?token=1&partition=0&pagesizehint=10"
    for _ in range(40):
        assert httpx.get(f"{page}&cursor=_first").text.count("data") == 10
    head = httpx.get(f"{page}&cursor=_last").json()["cursor"]
    httpx.get(f"{page}&cursor={head}&wait=0.1")
    for _ in range(12):
        found = httpx.get(f"{url}/metrics").text
        assert 'events_total{feed="orders",route="events"} 400.0' in found
        assert 'waiters{feed="orders"} 0.0' in found
        assert 'horizon_age_seconds{feed="orders"} ' in found
        assert found.count("events_total{") == 1


def assert_scrapes_agree_on_the_horizon(url, engine, folder):
    """Show that scrapes of several workers say for how long a writer is open, and name it."""

    def scrape(name):
        found = httpx.get(f"{url}/metrics").text
        return [float(value) for value in re.findall(rf"_{name}_seconds{{.*}} (.*)", found)]

    with engine.connect() as writer:
        writer.execute(insert(orders), {"data": {}})
        began = time.monotonic()
        assert scrape("horizon_age") < [1]
        time.sleep(LONG)
        before = len([*folder.glob("horizon=*")])

        def scraped():
            least = min(LONG, time.monotonic() - began)
            assert [age > least - 0.5 for age in scrape("horizon_age")] == [True]
            assert len(scrape("blocker_age")) == 1
            return len([*folder.glob("horizon=*")]) > before

        until(scraped, "another worker is scraped", PATIENCE)
        writer.rollback()


@pytest.mark.slow
def test_several_workers_are_one_publisher(server, postgresql, tmp_path):
    """Metrics are of all four; while they are replaced, and one is killed, a consumer reads on.

    It loses and repeats nothing.
    """
    assert_scrapes_agree_on_the_horizon(server.url, postgresql, tmp_path / "metrics")
    assert_scrapes_are_whole(server.url)
    engine = create_engine(f"sqlite:///{tmp_path / 'billing.db'}")
    store = new_store(engine)
    execute(engine, "CREATE TABLE landed (n INTEGER)")
    before = workers_of(server)

    def landed():
        return scalars(engine, "SELECT n FROM landed ORDER BY n")

    for count, page in enumerate(Consumer(Client(f"{server.url}/orders"), store, "b", limit=10)):
        with engine.begin() as connection:
            page.commit(connection)
            connection.execute(
                text("INSERT INTO landed VALUES (:n)"), [e.data for e in page.events]
            )
        if count == 5:
            os.kill(before[0], signal.SIGKILL)
        elif count == 10:
            server.process.send_signal(signal.SIGHUP)
        elif count > 10:
            until(
                lambda: not set(before) & set(workers_of(server)), "workers are replaced", PATIENCE
            )
        if len(landed()) == EVENTS:
            break
    assert landed() == [*range(EVENTS)]
    engine.dispose()


@pytest.mark.parametrize("file", ["publisher.py", "gunicorn.conf.py"])
def test_guide_shows_the_example(file):
    """What the guide shows of the example is a piece of it."""
    piece = block("workers.md", f"examples/workers/{file}")
    assert piece in (WORKERS / file).read_text()
