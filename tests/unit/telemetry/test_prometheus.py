"""Metrics in a registry of Prometheus."""

import pytest

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.telemetry import Prometheus, PrometheusPublisher


def test_metrics_are_registered_once(registry):
    """A second observer of one kind for a registry is refused with advice."""
    for kind in (Prometheus, PrometheusPublisher):
        kind(registry)
        with pytest.raises(ConfigurationError, match=rf"one {kind.__name__}\(\)"):
            kind(registry)
