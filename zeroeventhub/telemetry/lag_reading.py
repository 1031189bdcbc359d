"""A consumer's lag, for those who ask for it again and again."""

import logging
import time
from threading import Lock

from sqlalchemy.exc import SQLAlchemyError

from zeroeventhub.client import Client
from zeroeventhub.consumer.lag import lag
from zeroeventhub.cursors import CursorStore
from zeroeventhub.errors import ZeroEventHubError
from zeroeventhub.protocol import Lag

__all__ = ["LagReading"]

FRESH = 1.0
"""Seconds for which a lag is not asked for again: several gauges of one moment show the same."""

_log = logging.getLogger("zeroeventhub.telemetry")


class LagReading:
    """Look up how far a consumer is behind; where nobody can tell, the log says why.

    Args:
        client: reads the feed.
        store: has the consumer's cursors; made with a sync engine.
        name: the consumer's name.
    """

    def __init__(self, client: Client, store: CursorStore, name: str) -> None:
        self.name = name
        self._client = client
        self._store = store
        self._lock = Lock()
        self._known: dict[int, Lag] = {}
        self._read_at: float | None = None

    def read(self) -> dict[int, Lag]:
        """Return the lag by partition, none if it cannot be had just now."""
        with self._lock:
            if self._read_at is None or time.monotonic() - self._read_at >= FRESH:
                self._known = self._read()
                self._read_at = time.monotonic()
            return self._known

    def _read(self) -> dict[int, Lag]:
        try:
            return lag(self._client, self._store, self.name)
        except ZeroEventHubError as error:
            reason = str(error)
        except SQLAlchemyError as error:
            reason = f"{type(error).__name__} was raised."  # its text has SQL in it
        _log.warning(
            "The lag of consumer %r is not known: %s",
            self.name,
            reason,
            extra={"consumer": self.name, "partition": None},
        )
        return {}
