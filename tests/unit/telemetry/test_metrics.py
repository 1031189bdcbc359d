"""The table of metrics."""

from pathlib import Path

import pytest

from zeroeventhub.telemetry.metrics import (
    CONSUMER_METRICS,
    HORIZON_METRICS,
    LAG_METRICS,
    PUBLISHER_METRICS,
)


@pytest.mark.parametrize(
    ("section", "metrics"),
    [(0, (*CONSUMER_METRICS, *LAG_METRICS)), (1, (*PUBLISHER_METRICS, *HORIZON_METRICS))],
    ids=["consumers", "publishers"],
)
def test_every_metric_is_documented(section, metrics):
    """The guide's tables have all metrics, with their labels and descriptions."""
    guide = (Path(__file__).parents[3] / "docs" / "telemetry.md").read_text()
    rows = guide.split("\n## Publishers\n")[section].splitlines()
    for metric in metrics:
        short = metric.name.partition(".")[2]
        name = short.replace(".", "_")
        name += {"s": "_seconds", "By": "_bytes"}.get(metric.unit, "")
        name += "_total" if metric.kind == "counter" else ""
        (row,) = [line for line in rows if f"| `{short}` |" in line]
        assert f"`{name}`" in row
        assert metric.description in row
        assert ", ".join(metric.labels) in row
