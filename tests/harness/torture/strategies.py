"""The orderings of each database, as their users get them."""

from sqlalchemy import Table

from harness.torture.schema import PARTITIONS
from zeroeventhub import TableFeed

STRATEGIES = [
    ("postgresql", "observed"),
    ("postgresql", "gated"),
    ("postgresql", "sequenced"),
    ("mariadb", "observed"),
    ("mariadb", "sequenced"),
    ("sqlite", "single-writer"),
    ("sqlite", "sequenced"),
]


def published(table: Table, ordering: str) -> TableFeed:
    """Publish a table of events in one of the orderings."""
    columns = {"position": "id", "data": ["key", "n"], "partition": "part"}
    return TableFeed(table, ordering=ordering, partitions=PARTITIONS, **columns)
