"""A consumer's lag, for those who ask for it again and again."""

from zeroeventhub.client import Client
from zeroeventhub.consumer.lag import lag
from zeroeventhub.cursors import CursorStore
from zeroeventhub.protocol import Lag
from zeroeventhub.telemetry.reading import Reading

__all__ = ["LagReading"]


class LagReading(Reading[dict[int, Lag]]):
    """Look up how far a consumer is behind, by partition.

    Args:
        client: reads the feed.
        store: has the consumer's cursors; made with a sync engine.
        name: the consumer's name.
    """

    def __init__(self, client: Client, store: CursorStore, name: str) -> None:
        super().__init__(f"The lag of consumer {name!r}", {}, {"consumer": name, "partition": None})
        self.name = name
        self._client = client
        self._store = store

    def _look(self) -> dict[int, Lag]:
        return lag(self._client, self._store, self.name)
