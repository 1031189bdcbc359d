"""How much a feed takes of the service that it is mounted in."""

import math
from dataclasses import dataclass, fields

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import LARGEST_PAGE

__all__ = ["Capacity"]

_MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Bound what one feed takes of its process and of its database; each process has its own.

    Attributes:
        connections: how many connections of the engine the feed uses at once, at most; with a sync
            engine, also the threads that it works in.
        queue: how many requests may stand in line for a connection.
        patience: seconds for which a request stands in line before it is answered with 503.
        statement_seconds: for one statement of the feed's in the database.
        page_events: the largest page that may be asked for.
        page_bytes: how much data a page holds, unless a single event is larger.
        waiters: how many requests may wait at the head for something to read.
        wait_seconds: how long one of them waits at most; proxies give up after sixty.
        look_seconds: between two looks at the head while somebody waits; up to ten times as much
            where nothing comes, and more where looks take long or many feeds are waited for.
        sending_bytes: how much data of all answers together may be on its way to readers.
        sending_seconds: for a piece of an answer to be taken by its reader.
        kept_bytes: how much data of full pages is kept for the next who ask for them.
        kept_seconds: how long a page is kept.
    """

    connections: int = 4
    queue: int = 1_000
    patience: float = 5.0
    statement_seconds: float = 10.0
    page_events: int = LARGEST_PAGE
    page_bytes: int = 8 * _MEBIBYTE
    waiters: int = 10_000
    wait_seconds: float = 30.0
    look_seconds: float = 0.002
    sending_bytes: int = 64 * _MEBIBYTE
    sending_seconds: float = 30.0
    kept_bytes: int = 16 * _MEBIBYTE
    kept_seconds: float = 60.0

    def __post_init__(self) -> None:
        """Refuse bounds that nothing could keep, or that bound nothing.

        Raises:
            ConfigurationError: a bound is no number, not above zero, or without an end.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            kinds = {int} if field.type is int else {int, float}
            if type(value) not in kinds or not 0 < value < math.inf:
                whole = "a whole number" if field.type is int else "a number"
                raise ConfigurationError(f"Capacity.{field.name} has to be {whole} above zero.")
