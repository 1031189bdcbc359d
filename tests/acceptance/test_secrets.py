"""A canary in credentials, events and handlers, looked for in all that a consumer and the command
line say: every record of every logger at every level, every metric, every line printed.
"""

import logging

import httpx
import pytest
from harness.command_line import invoke
from harness.stores import new_store
from harness.web import serving
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, text
from sqlalchemy.exc import DBAPIError
from starlette.applications import Starlette

from zeroeventhub import Client, Consumer, Event, Failures, FeedInfo, Page, Partition, feed_routes
from zeroeventhub.errors import Halted, Unauthorized
from zeroeventhub.extensions import CAUGHT_UP
from zeroeventhub.server import Principal
from zeroeventhub.telemetry import OpenTelemetry, Prometheus

CANARY = "kanarek"
HEADERS = {"Authorization": f"Bearer {CANARY}", "X-Api-Key": CANARY}
table = Table("effects", MetaData(), Column("n", Integer, primary_key=True), Column("t", String(9)))


class Events:
    """Two events whose data nobody but their reader may see."""

    def info(self):
        return FeedInfo((Partition(0),), "1", extensions=frozenset({CAUGHT_UP}))

    def read(self, partition, cursor, limit):
        events = [] if cursor == "2" else [Event.of({"n": n, "text": CANARY}) for n in range(2)]
        return Page(events, "2", caught_up=True)


def authorize(request):
    """Let in who has the token."""
    if request.headers.get("authorization") != HEADERS["Authorization"]:
        raise Unauthorized("A token is needed.")
    return Principal(name="reader")


@pytest.fixture(scope="module")
def url():
    """The address of a feed that wants a token."""
    with serving(Starlette(routes=feed_routes("/orders", Events(), authorize=authorize))) as url:
        yield f"{url}/orders"


@pytest.fixture
def said(caplog, capfd):
    """A function that returns every record with all that is in it, and what was printed."""
    caplog.set_level(logging.DEBUG)

    def said():
        records = [one for one in caplog.records if one.name.startswith(("zeroeventhub", "httpx"))]
        found = "".join(f"{vars(one)!r} {one.getMessage()}" for one in records)
        return found + "".join(capfd.readouterr())

    return said


def insert_twice(connection, page):
    """Fail in the database, with data in the values of the statement."""
    for event in page.events:
        connection.execute(table.insert(), {"n": 1, "t": event.data["text"]})


def fail_with_sql(connection, page):
    """Fail in the database, with data in the statement."""
    connection.execute(text(f"SELECT {page.events[0].data['text']}"))


def fail_by_cause(connection, page):
    """Fail because of an error, both with the data in their texts."""
    try:
        int(page.events[0].data["text"])
    except ValueError as error:
        raise RuntimeError(page.events[0].data) from error


@pytest.mark.parametrize("failures", ["halt", "set-aside"])
@pytest.mark.parametrize("apply", [insert_twice, fail_with_sql, fail_by_cause])
def test_consumer_says_no_data_of_events(url, said, tmp_path, *, apply, failures):
    """Whatever a handler raises, logs and metrics have neither data nor credentials."""
    registry, reader = CollectorRegistry(), InMemoryMetricReader()
    observers = Prometheus(registry), OpenTelemetry(meter_provider=MeterProvider([reader]))
    for number, observer in enumerate(observers):
        engine = create_engine(f"sqlite:///{tmp_path}/{number}.db")
        table.metadata.create_all(engine)
        store = new_store(engine)
        with httpx.Client(headers=HEADERS) as http:
            consumer = Consumer(
                Client(url, http),
                store,
                "billing",
                follow=False,
                failures=Failures(then=failures, tries=2),
                observer=observer,
            )
            try:
                consumer.run(apply)
            except (Halted, DBAPIError):
                assert failures == "halt"
        engine.dispose()
    shown = generate_latest(registry).decode() + reader.get_metrics_data().to_json()
    assert "billing" in shown
    assert CANARY not in said() + shown


@pytest.mark.parametrize("command", ["discover", "tail", "lag", "sync", "conformance"])
def test_command_line_says_no_credentials(url, said, tmp_path, command):
    """A command that is refused says neither the token nor any other header."""
    database = f"sqlite:///{tmp_path}/c.db"
    options = {
        "lag": ["--store", database, "--consumer", "c"],
        "sync": ["--into", database, "--table", "t", "--consumer", "c"],
    }
    headers = ["-H", f"Authorization: Bearer {CANARY}x", "-H", f"X-Api-Key: {CANARY}"]
    result = invoke(command, url, *headers, *options.get(command, []))
    assert result.exit_code != 0
    assert CANARY not in result.output + said()
