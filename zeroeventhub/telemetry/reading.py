"""What is looked up when metrics are collected."""

import logging
import time
from abc import ABC, abstractmethod
from threading import Lock
from typing import Any, Generic, TypeVar

from zeroeventhub.errors import ZeroEventHubError

__all__ = ["Reading"]

FRESH = 1.0
"""Seconds for which nothing is looked up again: several gauges of one moment show the same."""

_log = logging.getLogger("zeroeventhub.telemetry")

_Found = TypeVar("_Found")


class Reading(ABC, Generic[_Found]):
    """Look something up for those who ask again and again; where that fails, the log says why.

    Args:
        what: what is looked up, in words.
        nothing: what is returned where it cannot be had.
        extra: what a record of the log has as attributes of its own.
    """

    def __init__(self, what: str, nothing: _Found, extra: dict[str, Any]) -> None:
        self._what = what
        self._nothing = nothing
        self._extra = extra
        self._lock = Lock()
        self._known = nothing
        self._read_at: float | None = None

    @abstractmethod
    def _look(self) -> _Found:
        """Look it up."""

    def read(self) -> _Found:
        """Return what has just been looked up."""
        with self._lock:
            if self._read_at is None or time.monotonic() - self._read_at >= FRESH:
                self._known = self._try()
                self._read_at = time.monotonic()
            return self._known

    def _try(self) -> _Found:
        try:
            return self._look()
        except ZeroEventHubError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - other metrics are collected all the same
            reason = f"{type(error).__name__} was raised."  # its text may have SQL in it
        _log.warning("%s is not known: %s", self._what, reason, extra=self._extra)
        return self._nothing
