"""What sealing asks of a feed's table, and the feed's archive."""

from collections.abc import Collection, Generator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.archived.seal_query import SealedRows, SealQuery
from zeroeventhub.publisher.archived.sealing import Ask, Sealed, SealOptions, Work, sealing
from zeroeventhub.publisher.cursor import Place
from zeroeventhub.publisher.history import History
from zeroeventhub.publisher.reader import Reader
from zeroeventhub.publisher.retention import begun_again
from zeroeventhub.publisher.time_query import TimeQuery

if TYPE_CHECKING:
    from zeroeventhub.archive.archive import Archive
    from zeroeventhub.archive.manifest import Manifest

__all__ = ["Sealer"]


class Sealer:
    """Seal a feed's table into its archive.

    Args:
        archive: the archive.
        feed: the digest by which the archive knows the feed.
        query: reads what segments hold.
        reader: knows how far the table may be read.
        history: makes cursors, and knows what was trimmed.
        times: finds the place of a moment.
        partitions: those that events may be in.
        attributes: the names of those of which the feed has a column.
    """

    def __init__(
        self,
        archive: "Archive",
        feed: str,
        query: SealQuery,
        *,
        reader: Reader,
        history: History,
        times: TimeQuery,
        partitions: Collection[int],
        attributes: Collection[str],
    ) -> None:
        self.archive = archive
        self._feed = feed
        self._reader = reader
        self._history = history
        self._query = query
        self._times = times
        self._partitions = partitions
        self._attributes = attributes

    def sealing(self, options: SealOptions) -> Generator[Ask | Work, Any, Sealed]:
        """Return the steps of sealing; see `sealing`."""
        return sealing(self.archive, self._feed, self, options)

    def erase(self, ids: Collection[str], keys: Collection[str]) -> int:
        """Erase events of the archive; see `BoundFeed.erase`."""
        if isinstance(ids, str) or isinstance(keys, str):
            raise ConfigurationError("Give ids and keys of events as lists of text.")
        if not self.archive.erasable:
            raise ConfigurationError(
                "Pages of this feed are marked as ones that never change, and caches keep them for "
                "a year: stop that by Archive(…, erasable=True) in all its processes, then erase."
            )
        for name, given in (("id", ids), ("key", keys)):
            # The archive has what columns hold: not the position that stands in for an id.
            if given and name not in self._attributes:
                raise ConfigurationError(
                    f"This feed has no column of {name}s by which its archive could find events: "
                    f"give it one, by {name}=…, before events are sealed."
                )
        self.kept()
        return self.archive.erase(ids, keys, lambda position: str(Place(position)))

    def kept(self) -> "Manifest":
        """Return what the archive has, as it is now.

        Raises:
            ConfigurationError: it is the archive of another feed.
            Unavailable: its store did not answer.
        """
        manifest = self.archive.look()
        self.archive.expect(self._feed)
        return manifest

    def sealable(
        self, connection: Connection, last: str | None, sealed: int, older_than: timedelta | None
    ) -> int:
        """Return the position up to which the table can be sealed.

        Args:
            connection: to the feed's database.
            last: the cursor at which the archive ends; None for an empty one.
            sealed: its position.
            older_than: leave what happened later than so long ago; None for nothing.

        Raises:
            Gone: the archive has another history than the table.
            FeedFailure: the table has events at numbers at which it was trimmed.
            ConfigurationError: events were trimmed before they were sealed, or the feed does not
                know times.
        """
        # What no reader can have seen is not to be lost.
        self._reader.checks.refuse_unpublished(connection)
        settled = self._reader.head(connection)
        trimmed = self._history.mark(connection).trimmed
        if self._query.read(connection, 0, trimmed, 1).last is not None:
            raise begun_again(trimmed)
        self._refuse_gap(connection, sealed)
        if last is not None:
            self._reader.vouch_in_table(connection, last)
        if older_than is None:
            return settled
        moment = datetime.now(UTC) - older_than
        return min(
            self._times.position(connection, partition, moment, settled=settled)
            for partition in self._partitions
        )

    def rows(
        self, connection: Connection, after: int, until: int, limit: int
    ) -> tuple[SealedRows, str]:
        """Read rows as segments hold them; return them and the cursor behind the last one."""
        rows = self._query.read(connection, after, until, limit)
        # Behind them, so that it tells of what was missing.
        self._refuse_gap(connection, after)
        return rows, "" if rows.last is None else self._history.cursor(*rows.last)

    def _refuse_gap(self, connection: Connection, sealed: int) -> None:
        trimmed = self._history.mark(connection).trimmed
        if trimmed > sealed:
            raise ConfigurationError(
                f"The table was trimmed up to {trimmed}, and the archive ends at {sealed}: what "
                "lies between is in neither. Trim only what is sealed, as a feed with an archive "
                "does by itself; an archive has to begin with the first event."
            )
