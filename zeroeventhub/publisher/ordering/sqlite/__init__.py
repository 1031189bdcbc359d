"""The orderings of SQLite."""

from zeroeventhub.publisher.ordering.sqlite.sequenced import Sequenced
from zeroeventhub.publisher.ordering.sqlite.single_writer import SingleWriter

__all__ = ["Sequenced", "SingleWriter"]
