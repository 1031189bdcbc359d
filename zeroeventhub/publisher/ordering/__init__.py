"""The order of a feed's events, and how far up it is safe to read.

There is a file for each strategy and database; the strategies of SQLite share one.

`WHERE id > :cursor` alone loses events: a transaction that drew a low number may commit
after a reader has passed a higher one. An ordering finds the *horizon*, the highest
position at and below which nothing can still become visible. A feed reads up to it.
"""

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.ordering import (
    mysql_observed,
    mysql_sequenced,
    postgresql_gated,
    postgresql_observed,
    postgresql_sequenced,
    sqlite,
)
from zeroeventhub.publisher.ordering.port import Blocker, Ddl, Events, Horizon, Ordering, Source

__all__ = [
    "BY_DATABASE",
    "ORDERINGS",
    "Blocker",
    "Ddl",
    "Events",
    "Horizon",
    "Ordering",
    "Source",
    "ordering_for",
]

_OF_MYSQL: dict[str, type[Ordering]] = {
    "observed": mysql_observed.Observed,
    "sequenced": mysql_sequenced.Sequenced,
}
BY_DATABASE: dict[str, dict[str, type[Ordering]]] = {
    "postgresql": {
        "observed": postgresql_observed.Observed,
        "gated": postgresql_gated.Gated,
        "sequenced": postgresql_sequenced.Sequenced,
    },
    "mariadb": _OF_MYSQL,
    "mysql": _OF_MYSQL,
    "sqlite": {"single-writer": sqlite.SingleWriter, "sequenced": sqlite.Sequenced},
}
"""The orderings of each database by name; the first needs no change to the database."""

ORDERINGS = tuple(dict.fromkeys(name for names in BY_DATABASE.values() for name in names))


def ordering_for(dialect: str, events: Events, name: str | None = None) -> Ordering:
    """Make the ordering of a table, by default the one that needs no change to the database."""
    orderings = BY_DATABASE.get(dialect)
    if orderings is None:
        raise ConfigurationError(
            f"Events in {dialect} cannot be put in a safe order; a feed reads from PostgreSQL, "
            "MariaDB, MySQL or SQLite."
        )
    chosen = name or next(iter(orderings))
    if chosen not in orderings:
        raise ConfigurationError(
            f"There is no ordering {chosen!r} for {dialect}: choose {' or '.join(orderings)}.",
            "ordering",
        )
    return orderings[chosen](events)
