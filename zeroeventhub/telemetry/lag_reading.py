"""A consumer's lag and its dead letters, for those who ask for them again and again."""

from sqlalchemy import Engine

from zeroeventhub.client import Client
from zeroeventhub.consumer.lag import lag
from zeroeventhub.cursors import CursorStore
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import Lag
from zeroeventhub.telemetry.reading import Reading

__all__ = ["LagReading", "LettersReading"]


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


class LettersReading(Reading[dict[int, int]]):
    """Look up how many dead letters a consumer has, by partition.

    Args:
        store: has them; made with a sync engine.
        name: the consumer's name.
    """

    def __init__(self, store: CursorStore, name: str) -> None:
        extra = {"consumer": name, "partition": None}
        super().__init__(f"The number of dead letters of consumer {name!r}", {}, extra)
        self.name = name
        self._store = store

    def _look(self) -> dict[int, int]:
        engine = self._store.engine
        if not isinstance(engine, Engine):
            raise ConfigurationError("Dead letters are counted in a store with a sync engine.")
        with engine.connect() as connection:
            known = dict.fromkeys(self._store.cursors(connection, self.name), 0)
            return known | self._store.dead_letters.count(connection, self.name)
