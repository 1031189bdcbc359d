"""Moments and times as requests write them."""

from datetime import UTC, datetime

import httpx

from zeroeventhub.errors import ConfigurationError

__all__ = ["decimal", "longer", "rfc3339"]

_FOR_EVER = 1_000_000


def rfc3339(moment: datetime) -> str:
    """Write a moment for a request, in UTC.

    Raises:
        ConfigurationError: it has no time zone, or lies outside of what UTC holds.
    """
    if moment.tzinfo is None:
        raise ConfigurationError("A moment needs a time zone, such as datetime.now(UTC) has.")
    try:
        return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except OverflowError:
        raise ConfigurationError("A moment lies in the years 1 to 9999, in UTC as well.") from None


def decimal(seconds: float) -> str:
    """Write a time to wait in digits, without an exponent.

    Raises:
        ConfigurationError: nobody can wait for so long.
    """
    if not 0 <= seconds < _FOR_EVER:
        raise ConfigurationError(f"A feed is asked to wait for 0 to {_FOR_EVER - 1:,} seconds.")
    return f"{seconds:.3f}".rstrip("0").rstrip(".")


def longer(patience: httpx.Timeout, seconds: float) -> httpx.Timeout:
    """Wait longer for an answer that was asked to come late."""
    limits = patience.as_dict()
    read = limits["read"]
    return httpx.Timeout(**{**limits, "read": None if read is None else read + seconds})
