"""Report to OpenTelemetry and Prometheus what consumers and publishers do."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from zeroeventhub.errors import require

if TYPE_CHECKING:
    from zeroeventhub.telemetry.open_telemetry import OpenTelemetry
    from zeroeventhub.telemetry.prometheus import Prometheus, lag_collector
    from zeroeventhub.telemetry.publishers import (
        OpenTelemetryPublisher,
        PrometheusPublisher,
        horizon_collector,
    )

__all__ = [
    "OpenTelemetry",
    "OpenTelemetryPublisher",
    "Prometheus",
    "PrometheusPublisher",
    "horizon_collector",
    "lag_collector",
]

# Imported at first use, because each needs a package that only its extra installs.
_MODULES = {
    "OpenTelemetry": ("open_telemetry", "opentelemetry"),
    "OpenTelemetryPublisher": ("publishers", "opentelemetry"),
    "Prometheus": ("prometheus", "prometheus_client"),
    "PrometheusPublisher": ("publishers", "prometheus_client"),
    "horizon_collector": ("publishers", "prometheus_client"),
    "lag_collector": ("prometheus", "prometheus_client"),
}


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return __all__


def __getattr__(name: str) -> Any:
    """Import a public name of an extra at first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, package = _MODULES[name]
    require(package, extra=package.removesuffix("_client"), user=f"{name} of telemetry")
    return getattr(import_module(f"{__name__}.{module}"), name)
