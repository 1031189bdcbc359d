"""Event streaming without a broker: a feed over your own SQL table, consumed exactly once."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from zeroeventhub import errors
from zeroeventhub.client import Appender, AsyncAppender, AsyncClient, Client, ConnectionPool
from zeroeventhub.new_events import NewEvent
from zeroeventhub.partitions import Layout
from zeroeventhub.protocol import (
    FIRST,
    LAST,
    Appended,
    CountedCursor,
    Event,
    FeedInfo,
    KeyPage,
    Lag,
    Page,
    Partition,
    TypeFilter,
)
from zeroeventhub.settings import Capacity, Limits
from zeroeventhub.wire.cloud_event import CloudEvent

if TYPE_CHECKING:
    from zeroeventhub.bulk.arrow_read import read_arrow
    from zeroeventhub.consumer.config import Failures
    from zeroeventhub.consumer.consumer import AsyncConsumer, Consumer
    from zeroeventhub.consumer.lag import async_lag, lag
    from zeroeventhub.consumer.observer import Observer
    from zeroeventhub.consumer.page import AsyncPendingPage, PendingPage
    from zeroeventhub.consumer.store.cursor_store import CursorStore
    from zeroeventhub.consumer.store.dead_letters import DeadLetter
    from zeroeventhub.consumer.store.tables import cursor_metadata, cursor_tables
    from zeroeventhub.event_log import (
        Capture,
        EventLog,
        ExpectedVersion,
        KeptEvent,
        KeyedTable,
        RestoredKey,
    )
    from zeroeventhub.feed import AsyncExtendedFeed, AsyncFeed, ExtendedFeed, Feed
    from zeroeventhub.publisher import TableFeed
    from zeroeventhub.publisher.archive_feed import ArchiveFeed
    from zeroeventhub.publisher.partition_hash import (
        hash_on_connect,
        layout_expression,
        partition_expression,
    )
    from zeroeventhub.publisher.progress import Progress
    from zeroeventhub.publisher.retention import Compaction, Retention
    from zeroeventhub.server import (
        AppendRight,
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
    "AppendRight",
    "Appended",
    "Appender",
    "ArchiveFeed",
    "AsyncAppender",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncExtendedFeed",
    "AsyncFeed",
    "AsyncPendingPage",
    "Capacity",
    "Capture",
    "Client",
    "CloudEvent",
    "Compaction",
    "ConnectionPool",
    "Consumer",
    "CountedCursor",
    "CursorStatus",
    "CursorStore",
    "DeadLetter",
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
    "Progress",
    "Quota",
    "RestoredKey",
    "Retention",
    "TableFeed",
    "TypeFilter",
    "async_lag",
    "bearer_tokens",
    "cursor_metadata",
    "cursor_tables",
    "errors",
    "everybody",
    "feed_routes",
    "hash_on_connect",
    "lag",
    "layout_expression",
    "partition_expression",
    "read_arrow",
]

# Imported when first asked for: they need what only an extra installs.
_LAZY = {
    "AppendRight": "server",
    "ArchiveFeed": "publisher.archive_feed",
    "AsyncConsumer": "consumer.consumer",
    "AsyncExtendedFeed": "feed",
    "AsyncFeed": "feed",
    "AsyncPendingPage": "consumer.page",
    "Capture": "event_log",
    "Compaction": "publisher.retention",
    "Consumer": "consumer.consumer",
    "CursorStatus": "consumer.store.status",
    "CursorStore": "consumer.store.cursor_store",
    "DeadLetter": "consumer.store.dead_letters",
    "EventLog": "event_log",
    "ExpectedVersion": "event_log",
    "ExtendedFeed": "feed",
    "Failures": "consumer.config",
    "Feed": "feed",
    "FeedAuthorization": "server",
    "KeptEvent": "event_log",
    "KeyedTable": "event_log",
    "Observer": "consumer.observer",
    "PendingPage": "consumer.page",
    "Principal": "server",
    "Progress": "publisher.progress",
    "Quota": "server",
    "RestoredKey": "event_log",
    "Retention": "publisher.retention",
    "TableFeed": "publisher",
    "async_lag": "consumer.lag",
    "bearer_tokens": "server",
    "cursor_metadata": "consumer.store.tables",
    "cursor_tables": "consumer.store.tables",
    "everybody": "server",
    "feed_routes": "server",
    "hash_on_connect": "publisher.partition_hash",
    "lag": "consumer.lag",
    "layout_expression": "publisher.partition_hash",
    "partition_expression": "publisher.partition_hash",
    "read_arrow": "bulk.arrow_read",
}


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return __all__


def __getattr__(name: str) -> Any:
    """Import a public name of an extra when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _LAZY[name]
    if module.startswith("bulk."):
        errors.require("pyarrow", extra="arrow", user=name)
    if module.startswith("consumer."):
        # Not in the package itself: Spark's executors import parts of it without this extra.
        for package in ("sqlalchemy", "greenlet"):
            errors.require(package, extra="sql", user=name)
    return getattr(import_module(f"{__name__}.{module}"), name)
