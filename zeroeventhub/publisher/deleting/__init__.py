"""Delete events batch by batch, beside those who write and read."""

from zeroeventhub.publisher.deleting.driving import Step, async_delete_all, delete_all
from zeroeventhub.publisher.deleting.pacing import Deleted, unheard
from zeroeventhub.publisher.deleting.statements import delete_beside, delete_events

__all__ = [
    "Deleted",
    "Step",
    "async_delete_all",
    "delete_all",
    "delete_beside",
    "delete_events",
    "unheard",
]
