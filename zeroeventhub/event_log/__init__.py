"""A log of events for those who have no table yet, and keys whose versions are guarded."""

from zeroeventhub.errors import require

for package in ("sqlalchemy", "greenlet"):
    require(package, extra="sql", user="A log of events")

from zeroeventhub.event_log.keyed_table import (  # noqa: E402 - behind the extra's check
    ExpectedVersion,
    KeyedTable,
)
from zeroeventhub.event_log.log import EventLog  # noqa: E402
from zeroeventhub.event_log.stored import KeptEvent, NewEvent  # noqa: E402

__all__ = ["EventLog", "ExpectedVersion", "KeptEvent", "KeyedTable", "NewEvent"]
