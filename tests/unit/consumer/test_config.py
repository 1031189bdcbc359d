"""What a consumer may be asked to be."""

import math
from datetime import timedelta
from functools import partial

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import Column, Integer, MetaData, Table

from zeroeventhub import AsyncConsumer, Consumer, CursorStore, Failures, TableFeed, feed_routes
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.telemetry import PrometheusPublisher


@pytest.mark.parametrize(
    "options",
    [
        *({name: value} for name in ("tries", "at_most") for value in (0, 1.5, math.nan, math.inf)),
        {"then": "ignore"},
        {"hold_back": True},
        {"tries": "3"},
    ],
)
def test_failures_that_cannot_be_are_refused(options):
    """There are one or more tries, two ways to go on, and nothing to hold back where all halts."""
    with pytest.raises(ConfigurationError):
        Failures(**options)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"name": ""}, "name"),
        ({"name": "billing "}, "space at its end"),
        ({"name": "a\0b"}, "printable"),
        ({"start": ""}, "start is FIRST"),
        ({"limit": 0}, "limit is 1 or more"),
        ({"partitions": ()}, "leave partitions out"),
        ({"poll_interval": -1}, "0 or more"),
        ({"poll_interval": 10_000_000_000}, "below 1,000,000"),
        ({"lanes": 0}, "lanes is 1 or more"),
        ({"failures": "set-aside"}, "failures is a Failures"),
        ({"lease": float("inf")}, "above 0"),
        ({"identity": "id"}, "identity is a function"),
        ({"synchronous_commit": False}, "PostgreSQL"),
        ({"name": None}, "name is text"),
        ({"start": None}, "start is text"),
        ({"limit": "100"}, "limit is a whole number, not '100'"),
        ({"limit": 1.5}, "limit is a whole number"),
        ({"concurrency": None}, "concurrency is a whole number"),
        ({"lease": timedelta(seconds=30)}, "lease is a number"),
        ({"partitions": 0}, r"such as \[0, 1\]"),
        ({"partitions": ["0"]}, r"such as \[0, 1\]"),
        ({"observer": PrometheusPublisher(registry=CollectorRegistry())}, "one of consumers"),
    ],
)
def test_option_that_cannot_work_is_refused(sqlite, options, complaint):
    """What is out of its range is refused before anything is read, by both consumers."""
    options = {"name": "billing", **options}
    for consumer in (Consumer, AsyncConsumer):
        with pytest.raises(ConfigurationError, match=complaint):
            consumer(None, CursorStore(sqlite), **options)


def test_engine_is_not_taken_for_a_store(sqlite):
    """Who gives the engine where the store belongs is told so before anything is read."""
    for consumer in (Consumer, AsyncConsumer):
        with pytest.raises(ConfigurationError, match=r"CursorStore\(engine\), not .* Engine"):
            consumer(None, sqlite, "billing")


def test_address_is_not_taken_for_what_is_made_of_it(sqlite):
    """A URL in place of a client or an engine is refused before anything is read."""
    address = "sqlite:///canary.db"
    for consumer in (Consumer, AsyncConsumer):
        with pytest.raises(ConfigurationError, match=r"of the class (Async)?Client, not str"):
            consumer("http://127.0.0.1:1/orders", CursorStore(sqlite), "billing")
    orders = TableFeed(Table("orders", MetaData(), Column("id", Integer, primary_key=True)))
    for make in (CursorStore, orders.bind, partial(feed_routes, "/orders", orders)):
        with pytest.raises(ConfigurationError, match=r"an engine") as refused:
            make(address)
        assert "canary" not in str(refused.value)


def test_partitions_may_be_an_iterator(sqlite):
    """What can be iterated over only once names the partitions as a list does."""
    consumer = Consumer(None, CursorStore(sqlite), "billing", partitions=map(int, ["0", "1"]))
    assert consumer.partitions == {0, 1}
