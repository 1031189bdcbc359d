"""A feed over a SQL table: which columns, in which order, in which form."""

from zeroeventhub.errors import require

for package in ("sqlalchemy", "greenlet"):
    require(package, extra="sql", user="A feed over a SQL table")

from zeroeventhub.publisher.table import TableFeed  # noqa: E402 - after it

__all__ = ["TableFeed"]
