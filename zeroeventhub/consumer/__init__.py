"""Follow a feed: pages in, effects and cursor committed in one transaction."""

from zeroeventhub.consumer.follow import AsyncConsumer, Consumer
from zeroeventhub.consumer.pending_page import AsyncPendingPage, PendingPage

__all__ = ["AsyncConsumer", "AsyncPendingPage", "Consumer", "PendingPage"]
