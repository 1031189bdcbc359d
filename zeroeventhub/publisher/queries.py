"""What a reader asks of a feed's table, and what pages it wants."""

from dataclasses import dataclass, field

from zeroeventhub.protocol import TypeFilter
from zeroeventhub.publisher.count_query import CountQuery
from zeroeventhub.publisher.cursor import Place
from zeroeventhub.publisher.id_query import IdQuery
from zeroeventhub.publisher.key_query import KeyQuery
from zeroeventhub.publisher.lag_query import LagQuery
from zeroeventhub.publisher.ordering import Horizon
from zeroeventhub.publisher.page_query import PageQuery
from zeroeventhub.publisher.split_query import SplitQuery
from zeroeventhub.publisher.time_query import TimeQuery

__all__ = ["Queries", "Wanted"]


@dataclass(frozen=True)
class Queries:
    """Hold what is asked of a feed's table.

    Attributes:
        pages: reads events.
        times: finds the place of a moment.
        splits: cuts a partition into pieces.
        ids: finds an event.
        lags: counts the events behind a place.
        counts: finds the place behind so many events.
        keys: reads the events of a key; None where there are no versions.
    """

    pages: PageQuery
    times: TimeQuery
    splits: SplitQuery
    ids: IdQuery
    lags: LagQuery
    counts: CountQuery
    keys: KeyQuery | None = None


@dataclass(frozen=True)
class Wanted:
    """Say what pages are to hold.

    Attributes:
        partition: the one to read.
        limit: how many events a page may have.
        types: which events; None for all.
        stop: where to stop; None for the horizon.
        each: whether the cursor behind each event is wanted.
    """

    partition: int
    limit: int
    types: TypeFilter | None
    stop: Place | None
    each: bool = field(kw_only=True)

    def until(self, horizon: Horizon) -> int:
        """Return the position behind which nothing is read."""
        return horizon.settled if self.stop is None else min(horizon.settled, self.stop.position)
