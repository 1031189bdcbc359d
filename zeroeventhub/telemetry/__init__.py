"""Tell OpenTelemetry and Prometheus what a consumer does."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zeroeventhub.telemetry.open_telemetry import OpenTelemetry
    from zeroeventhub.telemetry.prometheus import Prometheus, lag_collector

__all__ = ["OpenTelemetry", "Prometheus", "lag_collector"]

# Imported when first asked for: each needs what only its extra installs.
_LAZY = {
    "OpenTelemetry": "open_telemetry",
    "Prometheus": "prometheus",
    "lag_collector": "prometheus",
}


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return __all__


def __getattr__(name: str) -> Any:
    """Import a public name of an extra when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
