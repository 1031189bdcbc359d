"""What Prometheus is shown of consumers."""

from pathlib import Path

import pytest
from prometheus_client import generate_latest

from zeroeventhub.errors import ConfigurationError, Diverged
from zeroeventhub.telemetry import Prometheus
from zeroeventhub.telemetry.metric import LAG_EVENTS, LAG_TIME, METRICS
from zeroeventhub.telemetry.publisher_metric import HORIZON_METRICS, PUBLISHER_METRICS

CONSUMER = "billing"
PAGE = {"consumer": CONSUMER, "partition": "3"}


def test_page_is_counted_and_timed(registry, value):
    """A page that was fetched, applied and committed shows in all that is measured of it."""
    observer = Prometheus(registry)
    observer.fetched(CONSUMER, 3, 5, 0.2)
    with observer.applying(CONSUMER, 3, []):
        assert value("consumer_apply_duration_seconds_count", **PAGE) is None
    observer.committed(CONSUMER, 3, 5)
    observer.committed(CONSUMER, 3, 2)
    assert value("consumer_events_total", **PAGE) == 7
    assert value("consumer_pages_total", **PAGE) == 2
    assert value("consumer_fetch_duration_seconds_sum", **PAGE) == 0.2
    assert value("consumer_fetch_duration_seconds_bucket", le="0.1", **PAGE) == 0
    assert value("consumer_fetch_duration_seconds_bucket", le="0.25", **PAGE) == 1
    assert value("consumer_fetch_duration_seconds_bucket", le="60.0", **PAGE) == 1
    assert value("consumer_apply_duration_seconds_count", **PAGE) == 1


def test_what_goes_wrong_is_counted_by_kind(registry, value):
    """Failures and pauses are told apart by the kind of their error, never by its text."""
    observer = Prometheus(registry)
    observer.failed(CONSUMER, 3, KeyError("secret"), 1)
    observer.failed(CONSUMER, 3, KeyError("another"), 2)
    observer.waited(CONSUMER, 3, KeyError(), 1.5)
    observer.waited(CONSUMER, 3, KeyError(), 2.0)
    observer.waited(CONSUMER, None, Diverged("x"), 4.0)
    observer.fenced(CONSUMER, 3)
    observer.duplicate(CONSUMER, 3, 9)
    observer.set_aside(CONSUMER, 3, 2, 0)
    assert value("consumer_failures_total", error="KeyError", **PAGE) == 2
    assert value("consumer_retries_total", error="KeyError", **PAGE) == 2
    assert value("consumer_backoff_seconds_total", error="KeyError", **PAGE) == 3.5
    nowhere = {"consumer": CONSUMER, "partition": "", "error": "Diverged"}
    assert value("consumer_retries_total", **nowhere) == 1
    assert value("consumer_backoff_seconds_total", **nowhere) == 4
    assert value("consumer_fenced_total", **PAGE) == 1
    assert value("consumer_duplicates_total", **PAGE) == 9
    assert value("consumer_dead_letters_total", state="failed", **PAGE) == 2
    assert value("consumer_dead_letters_total", state="held", **PAGE) is None
    assert b"secret" not in generate_latest(registry)


def test_leases_held_are_those_of_now(registry, value):
    """The gauge of leases follows what is held, for each consumer."""
    observer = Prometheus(registry)
    observer.held(CONSUMER, frozenset({1, 2, 3}))
    observer.held("another", frozenset({4}))
    assert value("consumer_partitions_held", consumer=CONSUMER) == 3
    observer.held(CONSUMER, frozenset())
    assert value("consumer_partitions_held", consumer=CONSUMER) == 0
    assert value("consumer_partitions_held", consumer="another") == 1


def test_halted_partition_shows_until_it_goes_on(registry, value):
    """A halted partition is shown until something of it is committed or its lease is gone."""
    observer = Prometheus(registry)
    for partition in (3, 4, 5):
        observer.halted(CONSUMER, partition, KeyError())
    observer.halted("another", 3, KeyError())
    observer.committed(CONSUMER, 7, 1)
    observer.held(CONSUMER, frozenset({3, 4, 7}))

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


def test_metrics_are_registered_once(registry):
    """A second observer for a registry is refused with what to do instead."""
    Prometheus(registry)
    with pytest.raises(ConfigurationError, match="one Prometheus"):
        Prometheus(registry)


@pytest.mark.parametrize(
    ("section", "metrics"),
    [(0, (*METRICS, LAG_EVENTS, LAG_TIME)), (1, (*PUBLISHER_METRICS, *HORIZON_METRICS))],
    ids=["consumers", "publishers"],
)
def test_every_metric_is_documented(section, metrics):
    """The guide's tables have all metrics, with their labels and what they say."""
    guide = (Path(__file__).parents[3] / "docs" / "telemetry.md").read_text()
    rows = guide.split("\n## Publishers\n")[section].splitlines()
    for metric in metrics:
        name = metric.name.replace(".", "_")
        name += {"s": "_seconds", "By": "_bytes"}.get(metric.unit, "")
        name += "_total" if metric.kind.name == "COUNTER" else ""
        (row,) = [line for line in rows if f"| `{metric.name}` |" in line]
        assert f"`{name}`" in row
        assert metric.description in row
        assert ", ".join(metric.labels) in row
