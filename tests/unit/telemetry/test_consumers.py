"""The metrics of consumers, in OpenTelemetry and in Prometheus."""

from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import generate_latest

from zeroeventhub.errors import Diverged
from zeroeventhub.telemetry import OpenTelemetry, Prometheus
from zeroeventhub.telemetry.metrics import CONSUMER_METRICS

CONSUMER = "billing"
IDENTITY = {"messaging.system": "zeroeventhub", "messaging.consumer.group.name": CONSUMER}
PAGE = {**IDENTITY, "messaging.destination.partition.id": "3"}
LABELS = {"consumer": CONSUMER, "partition": "3"}
NAMES = {"error": "error.type", "state": "zeroeventhub.dead_letter.state"}
"""How OpenTelemetry calls labels."""

COUNTED = [
    ("events", PAGE, {}, 7),
    ("pages", PAGE, {}, 2),
    ("failures", PAGE, {"error": "KeyError"}, 2),
    ("dead_letters", PAGE, {"state": "failed"}, 2),
    ("dead_letters", PAGE, {"state": "held"}, 1),
    ("retries", PAGE, {"error": "KeyError"}, 2),
    ("retries", IDENTITY, {"error": "Diverged"}, 1),
    ("backoff", PAGE, {"error": "KeyError"}, 3.5),
    ("backoff", IDENTITY, {"error": "Diverged"}, 4),
    ("fenced", PAGE, {}, 1),
    ("duplicates", PAGE, {}, 4),
]


def test_every_hook_is_measured(reader, collected, registry, value):
    """Each hook of the observer has a metric; errors are labelled by class, never by text."""
    opentelemetry = OpenTelemetry(meter_provider=MeterProvider([reader]))
    for one in (opentelemetry, Prometheus(registry)):
        one.fetched(CONSUMER, 3, 5, 0.2)
        with one.applying(CONSUMER, 3, []):
            assert value("consumer_apply_duration_seconds_count", **LABELS) is None
        one.committed(CONSUMER, 3, 5)
        one.committed(CONSUMER, 3, 2)
        for number in (1, 2):
            one.failed(CONSUMER, 3, KeyError(f"secret {number}"), number)
            one.set_aside(CONSUMER, 3, 1, number - 1)
            one.waited(CONSUMER, 3, KeyError("secret"), number + 0.25)
        one.waited(CONSUMER, None, Diverged("secret"), 4.0)
        one.fenced(CONSUMER, 3)
        one.duplicate(CONSUMER, 3, 4)
        one.halted(CONSUMER, 3, KeyError("secret"))
        one.held(CONSUMER, frozenset({3, 4}))
    metrics = collected()
    assert {name: metric.unit for name, metric in metrics.items()} == {
        metric.name.removeprefix("consumer."): metric.unit for metric in CONSUMER_METRICS
    }
    found = {name: list(metric.data.data_points) for name, metric in metrics.items()}
    for name, where, labels, expected in COUNTED:
        attributes = where | {NAMES[label]: text for label, text in labels.items()}
        assert [p.value for p in found[name] if dict(p.attributes) == attributes] == [expected]
        unit = "_seconds" if name == "backoff" else ""
        shown = {**LABELS, "partition": "3" if where == PAGE else "", **labels}
        assert value(f"consumer_{name}{unit}_total", **shown) == expected
    for name, where, expected in (("partition_halted", PAGE, 1), ("partitions_held", IDENTITY, 2)):
        assert [(dict(p.attributes), p.value) for p in found[name]] == [(where, expected)]
    (fetch,), (apply,) = found["fetch.duration"], found["apply.duration"]
    assert (fetch.sum, apply.count) == (0.2, 1)
    assert fetch.explicit_bounds[:2] == (0.005, 0.01)
    assert value("consumer_fetch_duration_seconds_sum", **LABELS) == 0.2
    for bound, count in (("0.1", 0), ("0.25", 1), ("60.0", 1)):
        assert value("consumer_fetch_duration_seconds_bucket", le=bound, **LABELS) == count
    assert value("consumer_apply_duration_seconds_count", **LABELS) == 1
    assert "secret" not in str(found)
    assert b"secret" not in generate_latest(registry)


def test_leases_and_halted_partitions_are_those_of_now(registry, value):
    """The gauges show the leases held now, and a partition for as long as it is halted."""
    observer = Prometheus(registry)
    for partition in (3, 4, 5):
        observer.halted(CONSUMER, partition, KeyError())
    observer.halted("another", 3, KeyError())
    observer.committed(CONSUMER, 7, 1)
    observer.held(CONSUMER, frozenset({3, 4, 7}))
    observer.held("another", frozenset({3}))
    assert value("consumer_partitions_held", consumer=CONSUMER) == 3

    def shown():
        return [
            value("consumer_partition_halted", consumer=CONSUMER, partition=str(number))
            for number in (3, 4, 5, 7)
        ]

    assert shown() == [1, 1, 0, None]
    observer.committed(CONSUMER, 4, 1)
    assert shown() == [1, 0, 0, None]
    observer.halted(CONSUMER, 4, KeyError())
    assert shown() == [1, 1, 0, None]
    observer.held(CONSUMER, frozenset())
    assert shown() == [0, 0, 0, None]
    assert value("consumer_partition_halted", consumer="another", partition="3") == 1
    assert value("consumer_partitions_held", consumer=CONSUMER) == 0
    assert value("consumer_partitions_held", consumer="another") == 1
