"""A consumer's lag as gauges, looked up in a real feed and store when they are collected."""

import logging
from dataclasses import replace

import pytest
from harness.readers import client_of, mounted
from harness.stores import load, new_store
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import Connection

from zeroeventhub import FIRST, Consumer, Event, Failures, FeedInfo, Lag, Page, testing
from zeroeventhub.errors import Diverged
from zeroeventhub.extensions import LAG
from zeroeventhub.telemetry import OpenTelemetry, Prometheus, lag_collector, metrics

CONSUMER = "billing"


class CountingFeed:
    """A feed of two partitions with a known lag, which records requests."""

    def __init__(self):
        self.asked = []
        self.lag_of = {0: Lag(7, 1.5), 1: Lag(10_000, None, exact=False)}

    def info(self):
        return replace(FeedInfo.of(2), extensions=frozenset({LAG}))

    def read(self, partition, cursor, limit):
        return Page([Event.of("without a time")], "1")

    def lag(self, partition, cursor):
        self.asked.append((partition, cursor))
        if isinstance(self.lag_of, Exception):
            raise self.lag_of
        return self.lag_of[partition]


@pytest.fixture
def feed():
    """A feed that counts."""
    return CountingFeed()


@pytest.fixture
def store(sqlite):
    """A store in which the consumer has a cursor in one partition."""
    store = new_store(sqlite)
    load(store, 1, start="c", name=CONSUMER)
    return store


@pytest.fixture
def client(feed):
    """A client of the feed."""
    with mounted(feed) as url, client_of(url) as client:
        yield client


@pytest.fixture
def observed(client, store):
    """A function that collects the lags of OpenTelemetry, by gauge and partition."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    OpenTelemetry(meter_provider=provider).observe_lag(client, store, CONSUMER)

    def observed():
        data = reader.get_metrics_data()
        return {
            (metric.name, point.attributes["messaging.destination.partition.id"]): point.value
            for resource in (data.resource_metrics if data else [])
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
            if point.attributes["messaging.consumer.group.name"] == CONSUMER
        }

    yield observed
    provider.shutdown()


@pytest.fixture
def registry(client, store):
    """A registry of Prometheus that collects the lag."""
    registry = CollectorRegistry(auto_describe=True)
    registry.register(lag_collector(client, store, CONSUMER))
    return registry


def test_lag_is_looked_up_when_it_is_collected(feed, registry, observed, monkeypatch):
    """A collection looks the lag up once for both gauges; registering sends no request."""
    assert feed.asked == []
    shown = generate_latest(registry).decode()
    assert feed.asked == [(0, FIRST), (1, "c")]
    assert {line for line in shown.splitlines() if not line.startswith("#")} == {
        'zeroeventhub_consumer_dead_letters_open{consumer="billing",partition="1"} 0.0',
        'zeroeventhub_consumer_lag_events{consumer="billing",partition="0"} 7.0',
        'zeroeventhub_consumer_lag_events{consumer="billing",partition="1"} 10000.0',
        'zeroeventhub_consumer_lag_time_seconds{consumer="billing",partition="0"} 1.5',
    }
    assert observed() == {
        ("zeroeventhub.consumer.dead_letters.open", "1"): 0,
        ("zeroeventhub.consumer.lag.events", "0"): 7,
        ("zeroeventhub.consumer.lag.events", "1"): 10_000,
        ("zeroeventhub.consumer.lag.time", "0"): 1.5,
    }
    assert len(feed.asked) == 4
    monkeypatch.setattr(metrics, "FRESH", 60.0)
    feed.lag_of = dict.fromkeys(range(2), Lag(0, 0.0))
    assert generate_latest(registry).decode() == shown
    assert len(feed.asked) == 4
    monkeypatch.setattr(metrics, "FRESH", 0.0)
    assert b'lag_time_seconds{consumer="billing",partition="1"} 0.0' in generate_latest(registry)
    assert len(feed.asked) > 4


def test_observer_shows_the_lags_of_several_consumers(client, store):
    """An observer shows the lag of each consumer that it was told of."""
    registry, reader = CollectorRegistry(), InMemoryMetricReader()
    provider = MeterProvider([reader])
    for telemetry in (Prometheus(registry), OpenTelemetry(meter_provider=provider)):
        for name in (CONSUMER, "shipping"):
            telemetry.observe_lag(client, store, name)
    lags, found = "zeroeventhub_consumer_lag_events", reader.get_metrics_data()
    provider.shutdown()
    for name in (CONSUMER, "shipping"):
        labels = {"consumer": name, "partition": "0"}
        assert registry.get_sample_value(lags, labels) == 7
    (one,) = (
        metric
        for metric in found.resource_metrics[0].scope_metrics[0].metrics
        if metric.name == "zeroeventhub.consumer.lag.events"
    )
    points = [point.attributes for point in one.data.data_points]
    assert {one["messaging.consumer.group.name"] for one in points} == {CONSUMER, "shipping"}


def test_consumer_that_is_told_of_again_is_shown_once(client, store):
    """A consumer that is started again in its process has each series once, as scrapes demand."""
    registry = CollectorRegistry()
    telemetry = Prometheus(registry)
    for _ in range(2):
        telemetry.observe_lag(client, store, CONSUMER)
    shown = generate_latest(registry).decode()
    assert shown.count('lag_events{consumer="billing",partition="0"}') == 1


def test_each_event_is_counted_once_when_it_is_applied(store):
    """What was set aside counts once it is applied, and what the inbox drops never."""
    registry, poison = CollectorRegistry(), {1, 2, 3}

    def apply(_: Connection, one: Event) -> None:
        if one.data["id"] in poison:
            raise ValueError

    def applied():
        labels = {"consumer": CONSUMER, "partition": "0"}
        return registry.get_sample_value("zeroeventhub_consumer_events_total", labels)

    feed = testing.feed_of([{"id": n} for n in (1, 2, 3, 4, 4)], exactly_once=False)
    consumer = Consumer(
        testing.client_of(feed),
        store,
        CONSUMER,
        failures=Failures(tries=1, then="set-aside"),
        identity=lambda one: str(one.data["id"]),
        observer=Prometheus(registry),
    )
    testing.run_to_head(consumer, apply)
    assert applied() == 1
    poison.clear()
    with store.engine.begin() as connection:
        assert store.dead_letters.retry(connection, CONSUMER) == 3
    testing.run_to_head(consumer, apply)
    assert applied() == 4


def test_lag_that_cannot_be_had_is_absent(feed, registry, caplog):
    """If the feed refuses, other metrics are still shown, and the log says why."""
    Prometheus(registry).committed(CONSUMER, 3, 1)
    feed.lag_of = Diverged("The history is another one.")
    with caplog.at_level(logging.WARNING, "zeroeventhub.telemetry"):
        shown = generate_latest(registry).decode()
    assert 'events_total{consumer="billing",partition="3"} 1.0' in shown
    assert "lag_events{" not in shown
    (record,) = [one for one in caplog.records if one.name == "zeroeventhub.telemetry"]
    assert record.getMessage().startswith("The lag of consumer 'billing' is not known: ")
    assert "The history is another one." in record.getMessage()
    assert (record.consumer, record.partition) == (CONSUMER, None)


def test_store_without_tables_is_told_without_its_statement(sqlite, store, observed, caplog):
    """A missing table is named; other errors of the database are named by their kind alone."""
    for table in store.tables.all():
        table.drop(sqlite)
    assert observed() == {}
    said = [one.getMessage() for one in caplog.records if one.name == "zeroeventhub.telemetry"]
    lag, letters = said
    assert "This database has no table zeroeventhub_cursors" in lag
    assert letters.endswith("is not known: OperationalError was raised.")
    assert "SELECT" not in lag + letters
