"""What lies in a consumer's own database: its cursors, leases, inbox and dead letters."""

from zeroeventhub.errors import require

for package in ("sqlalchemy", "greenlet"):
    require(package, extra="sql", user="Keeping cursors in a database")

from zeroeventhub.cursors.dead_letters import DeadLetter  # noqa: E402 - after it
from zeroeventhub.cursors.operating import Standing  # noqa: E402 - after it
from zeroeventhub.cursors.store import CursorStore  # noqa: E402 - after it
from zeroeventhub.cursors.tables import Tables, metadata, tables  # noqa: E402 - after it

__all__ = ["CursorStore", "DeadLetter", "Standing", "Tables", "metadata", "tables"]
