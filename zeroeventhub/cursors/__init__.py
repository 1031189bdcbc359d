"""Where a consumer keeps its cursors: a table in its own database."""

from zeroeventhub.errors import require

for package in ("sqlalchemy", "greenlet"):
    require(package, extra="sql", user="Keeping cursors in a database")

from zeroeventhub.cursors.store import CursorStore, cursor_table, metadata  # noqa: E402 - after it

__all__ = ["CursorStore", "cursor_table", "metadata"]
