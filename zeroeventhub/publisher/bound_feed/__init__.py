"""A table's feed with a database behind it, sync or async."""

from zeroeventhub.publisher.bound_feed.async_bound_feed import AsyncBoundFeed
from zeroeventhub.publisher.bound_feed.bound_feed import BoundFeed
from zeroeventhub.publisher.bound_feed.roles import Roles

__all__ = ["AsyncBoundFeed", "BoundFeed", "Roles"]
