"""A log of events for those who have no table yet, and keys whose versions are guarded."""

from zeroeventhub.errors import require

for package in ("sqlalchemy", "greenlet"):
    require(package, extra="sql", user="A log of events")

from zeroeventhub.event_log.expected_version import ExpectedVersion  # noqa: E402 - after it
from zeroeventhub.event_log.kept_event import KeptEvent  # noqa: E402 - after it
from zeroeventhub.event_log.keyed_table import KeyedTable  # noqa: E402 - after it
from zeroeventhub.event_log.log import EventLog  # noqa: E402 - after it
from zeroeventhub.event_log.new_event import NewEvent  # noqa: E402 - after it

__all__ = ["EventLog", "ExpectedVersion", "KeptEvent", "KeyedTable", "NewEvent"]
