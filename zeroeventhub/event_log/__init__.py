"""A ready-made table of events for a service without one, and appends that expect a version."""

from zeroeventhub.errors import require

for package in ("sqlalchemy", "greenlet"):
    require(package, extra="sql", user="A log of events")

from zeroeventhub.event_log.capture import Capture  # noqa: E402 - after the extra's check
from zeroeventhub.event_log.events import KeptEvent  # noqa: E402
from zeroeventhub.event_log.keyed_table import ExpectedVersion, KeyedTable  # noqa: E402 - after the extra's check
from zeroeventhub.event_log.log import EventLog  # noqa: E402
from zeroeventhub.event_log.snapshots import RestoredKey  # noqa: E402
from zeroeventhub.new_events import NewEvent  # noqa: E402

__all__ = [
    "Capture",
    "EventLog",
    "ExpectedVersion",
    "KeptEvent",
    "KeyedTable",
    "NewEvent",
    "RestoredKey",
]
