"""How much of its history a feed keeps: what was trimmed, and what trims it."""

from zeroeventhub.publisher.retention.mark import NOTHING_TRIMMED, Mark, begun_again
from zeroeventhub.publisher.retention.marks import Marks
from zeroeventhub.publisher.retention.retention import Retention

__all__ = ["NOTHING_TRIMMED", "Mark", "Marks", "Retention", "begun_again"]
