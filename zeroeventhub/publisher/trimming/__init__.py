"""Take the oldest events out of a feed's table, and tell the feed."""

from zeroeventhub.publisher.trimming.batches import Batches
from zeroeventhub.publisher.trimming.plan import TrimPlan
from zeroeventhub.publisher.trimming.trimmer import Trimmer
from zeroeventhub.publisher.trimming.trimming import ROWS, AsyncTrimming, Trimming

__all__ = ["ROWS", "AsyncTrimming", "Batches", "TrimPlan", "Trimmer", "Trimming"]
