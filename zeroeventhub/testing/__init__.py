"""Test publishers and consumers of your own: feeds in memory, stores, faults, kills of a handler.

Nothing here opens a socket. What is sent is the protocol as it is on the wire.
"""

from zeroeventhub.errors import require

for _package in ("sqlalchemy", "greenlet", "starlette"):
    require(_package, extra="testing", user="zeroeventhub.testing")

# These need SQLAlchemy and Starlette:
from zeroeventhub.testing.consumers import (  # noqa: E402
    async_run_to_head,
    async_sqlite_engine,
    async_store_of,
    no_pauses,
    run_to_head,
    sqlite_engine,
    store_of,
)
from zeroeventhub.testing.feeds import (  # noqa: E402
    Faults,
    LogFeed,
    MemoryFeed,
    async_client_of,
    client_of,
    events_of,
    feed_of,
)
from zeroeventhub.testing.handlers import async_check_handler, check_handler  # noqa: E402

__all__ = [
    "Faults",
    "LogFeed",
    "MemoryFeed",
    "async_check_handler",
    "async_client_of",
    "async_run_to_head",
    "async_sqlite_engine",
    "async_store_of",
    "check_handler",
    "client_of",
    "events_of",
    "feed_of",
    "no_pauses",
    "run_to_head",
    "sqlite_engine",
    "store_of",
]
