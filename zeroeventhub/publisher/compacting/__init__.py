"""Keep the last event of each key only, where a feed says that it does."""

from zeroeventhub.publisher.compacting.compacting import AsyncCompacting, Compacting
from zeroeventhub.publisher.compacting.compaction import Compaction
from zeroeventhub.publisher.compacting.compactor import Compactor

__all__ = ["AsyncCompacting", "Compacting", "Compaction", "Compactor"]
