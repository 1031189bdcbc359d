"""Let Spark find the format "zeroeventhub" by itself, in a module named as Spark wants it."""

from contextlib import suppress

# One module that cannot be imported would keep Spark from finding any other.
with suppress(ImportError):
    from zeroeventhub.spark import FeedSource as DefaultSource

__all__ = ["DefaultSource"]
