"""A feed of 100 orders, and what relays it."""

from contextlib import ExitStack

import httpx
import pytest
from harness.kafka import broker as run_broker
from harness.readers import mounted
from harness.shop import fill, orders
from harness.stores import new_store
from harness.web import serving
from sqlalchemy import create_engine

from zeroeventhub import Client, Consumer, TableFeed


@pytest.fixture
def feed(sqlite):
    """The URL of 100 orders as CloudEvents in 2 partitions, with their customers as keys."""
    columns = {"data": "data", "partition": "part", "type": "kind", "key": "customer", "id": "id"}
    published = TableFeed(orders, partitions=2, cloudevents=True, **columns)
    with mounted(published, fill(sqlite, 100, partitions=2)) as url:
        yield url


@pytest.fixture
def store(tmp_path):
    """The store of a consumer, in a database of its own."""
    engine = create_engine(f"sqlite:///{tmp_path / 'relay.db'}")
    yield new_store(engine)
    engine.dispose()


@pytest.fixture
def relay(feed, store):
    """A function that delivers what a consumer has not read yet, up to the head."""

    def relay(target, **options):
        with httpx.Client() as http:
            chosen = {"follow": False, "attempts": 5, "limit": 25, **options}
            Consumer(Client(feed, http), store, "relay", **chosen).run(target.apply)

    return relay


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    """A broker that speaks Kafka's protocol."""
    with run_broker(tmp_path_factory.mktemp("kafka") / "broker.log") as running:
        yield running


@pytest.fixture
def receiving():
    """A function that serves a receiver of webhooks, and returns its URL."""
    with ExitStack() as stack:
        yield lambda receiver: f"{stack.enter_context(serving(receiver.application))}/hook"
