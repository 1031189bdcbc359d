"""What Prometheus is shown of consumers."""

from pathlib import Path

import pytest

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.telemetry import Prometheus, PrometheusPublisher
from zeroeventhub.telemetry.consumer_metrics import LAG_EVENTS, LAG_TIME, METRICS
from zeroeventhub.telemetry.publisher_metrics import HORIZON_METRICS, PUBLISHER_METRICS

CONSUMER = "billing"


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
    """A second observer of one kind for a registry is refused with what to do instead."""
    for kind in (Prometheus, PrometheusPublisher):
        kind(registry)
        with pytest.raises(ConfigurationError, match=rf"one {kind.__name__}\(\)"):
            kind(registry)


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
