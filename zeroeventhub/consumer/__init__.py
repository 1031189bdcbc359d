"""Follow a feed: pages in, effects and cursor committed in one transaction."""

from zeroeventhub.errors import require

for package in ("sqlalchemy", "greenlet"):
    require(package, extra="sql", user="A consumer that keeps its place in a database")

from zeroeventhub._follow.failures import Failures  # noqa: E402 - after it
from zeroeventhub.consumer.async_consumer import AsyncConsumer  # noqa: E402 - after it
from zeroeventhub.consumer.consumer import Consumer  # noqa: E402 - after it
from zeroeventhub.consumer.lag import async_lag, lag  # noqa: E402 - after it
from zeroeventhub.consumer.observer import Observer  # noqa: E402 - after it
from zeroeventhub.consumer.page import AsyncPendingPage, PendingPage  # noqa: E402 - after it

__all__ = [
    "AsyncConsumer",
    "AsyncPendingPage",
    "Consumer",
    "Failures",
    "Observer",
    "PendingPage",
    "async_lag",
    "lag",
]
