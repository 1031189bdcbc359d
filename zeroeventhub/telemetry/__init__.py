"""Tell OpenTelemetry and Prometheus what consumers and publishers do."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from zeroeventhub.errors import require

if TYPE_CHECKING:
    from zeroeventhub.telemetry.open_telemetry import OpenTelemetry
    from zeroeventhub.telemetry.open_telemetry_publisher import OpenTelemetryPublisher
    from zeroeventhub.telemetry.prometheus import Prometheus, lag_collector
    from zeroeventhub.telemetry.prometheus_publisher import PrometheusPublisher

__all__ = [
    "OpenTelemetry",
    "OpenTelemetryPublisher",
    "Prometheus",
    "PrometheusPublisher",
    "lag_collector",
]

# Imported when first asked for: each needs what only its extra installs.
_EXTRAS = {"open_telemetry": "opentelemetry", "prometheus": "prometheus_client"}
_LAZY = {
    "OpenTelemetry": "open_telemetry",
    "OpenTelemetryPublisher": "open_telemetry_publisher",
    "Prometheus": "prometheus",
    "PrometheusPublisher": "prometheus_publisher",
    "lag_collector": "prometheus",
}


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return __all__


def __getattr__(name: str) -> Any:
    """Import a public name of an extra when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _LAZY[name]
    package = _EXTRAS[module.removesuffix("_publisher")]
    require(package, extra=package.removesuffix("_client"), user=f"{name} of telemetry")
    return getattr(import_module(f"{__name__}.{module}"), name)
