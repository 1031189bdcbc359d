"""Event streaming without a broker: a feed over your own SQL table, consumed exactly once."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from zeroeventhub import errors
from zeroeventhub.capacity import Capacity
from zeroeventhub.client import AsyncClient, Client
from zeroeventhub.layout import Layout
from zeroeventhub.limits import Limits
from zeroeventhub.protocol import (
    FIRST,
    LAST,
    CountedCursor,
    Event,
    FeedInfo,
    KeyPage,
    Lag,
    Page,
    Partition,
    TypeFilter,
)

if TYPE_CHECKING:
    from zeroeventhub.consumer import (
        AsyncConsumer,
        AsyncPendingPage,
        Consumer,
        Failures,
        Observer,
        PendingPage,
        async_lag,
        lag,
    )
    from zeroeventhub.cursors import CursorStore
    from zeroeventhub.event_log import EventLog, ExpectedVersion, KeptEvent, KeyedTable, NewEvent
    from zeroeventhub.feed import AsyncExtendedFeed, AsyncFeed, ExtendedFeed, Feed
    from zeroeventhub.publisher import TableFeed
    from zeroeventhub.server import (
        FeedAuthorization,
        Principal,
        Quota,
        bearer_tokens,
        everybody,
        feed_routes,
    )

__all__ = [
    "FIRST",
    "LAST",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncExtendedFeed",
    "AsyncFeed",
    "AsyncPendingPage",
    "Capacity",
    "Client",
    "Consumer",
    "CountedCursor",
    "CursorStore",
    "Event",
    "EventLog",
    "ExpectedVersion",
    "ExtendedFeed",
    "Failures",
    "Feed",
    "FeedAuthorization",
    "FeedInfo",
    "KeptEvent",
    "KeyPage",
    "KeyedTable",
    "Lag",
    "Layout",
    "Limits",
    "NewEvent",
    "Observer",
    "Page",
    "Partition",
    "PendingPage",
    "Principal",
    "Quota",
    "TableFeed",
    "TypeFilter",
    "async_lag",
    "bearer_tokens",
    "errors",
    "everybody",
    "feed_routes",
    "lag",
]

# Imported when first asked for: they need what only an extra installs.
_LAZY = {
    "AsyncConsumer": "consumer",
    "AsyncExtendedFeed": "feed",
    "AsyncFeed": "feed",
    "AsyncPendingPage": "consumer",
    "Consumer": "consumer",
    "CursorStore": "cursors",
    "EventLog": "event_log",
    "ExpectedVersion": "event_log",
    "ExtendedFeed": "feed",
    "Failures": "consumer",
    "Feed": "feed",
    "FeedAuthorization": "server",
    "KeptEvent": "event_log",
    "KeyedTable": "event_log",
    "NewEvent": "event_log",
    "Observer": "consumer",
    "PendingPage": "consumer",
    "Principal": "server",
    "Quota": "server",
    "TableFeed": "publisher",
    "async_lag": "consumer",
    "bearer_tokens": "server",
    "everybody": "server",
    "feed_routes": "server",
    "lag": "consumer",
}


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return __all__


def __getattr__(name: str) -> Any:
    """Import a public name of an extra when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
