"""Follow a feed: pages in, effects and cursor committed in one transaction."""

from zeroeventhub.errors import require

for package in ("sqlalchemy", "greenlet"):
    require(package, extra="sql", user="A consumer that keeps its place in a database")

from zeroeventhub.consumer.follow import AsyncConsumer, Consumer  # noqa: E402 - after it
from zeroeventhub.consumer.pending_page import (  # noqa: E402 - after it
    AsyncPendingPage,
    PendingPage,
)

__all__ = ["AsyncConsumer", "AsyncPendingPage", "Consumer", "PendingPage"]
