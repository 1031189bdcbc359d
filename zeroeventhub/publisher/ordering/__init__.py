"""The order of a feed's events, and how far up it is safe to read: one file a strategy.

`WHERE id > :cursor` alone loses events: a transaction that drew a low number may commit
after a reader has passed a higher one. An ordering knows the *horizon*, the highest
position at and below which nothing can still become visible. A feed reads up to there.
"""

from typing import Any

from sqlalchemy import ColumnElement, Table

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.ordering.observed import Observed
from zeroeventhub.publisher.ordering.port import Horizon, Ordering
from zeroeventhub.publisher.ordering.single_writer import SingleWriter

__all__ = ["Horizon", "Ordering", "ordering_for"]


def ordering_for(
    dialect: str, table: Table, position: ColumnElement[Any], *, append_only: bool
) -> Ordering:
    """Choose the ordering of a database that needs nothing from its user.

    Raises:
        ConfigurationError: there is none for this database.
    """
    match dialect:
        case "postgresql":
            return Observed(table, position)
        case "sqlite":
            return SingleWriter(table, position, append_only=append_only)
        case _:
            raise ConfigurationError(
                f"Events in {dialect} cannot be put in a safe order; a feed reads from PostgreSQL "
                "or SQLite."
            )
