"""A table's feed behind a sync engine."""

from collections.abc import Callable, Collection
from copy import copy
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from sqlalchemy import Connection, Engine, event

from zeroeventhub.at_hand import NotAtHand, Parts
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import (
    EXTENSIONS,
    FIRST,
    CountedCursor,
    FeedInfo,
    KeyPage,
    Lag,
    Page,
    Segments,
    TypeFilter,
)
from zeroeventhub.publisher.archived.files import Files, expect_shared
from zeroeventhub.publisher.archived.sealing import (
    SEGMENT_BYTES,
    SEGMENT_EVENTS,
    Sealed,
    Sealer,
    SealOptions,
    drive,
    unheard,
)
from zeroeventhub.publisher.checks import Finding
from zeroeventhub.publisher.compacting import Compacting, Compactor
from zeroeventhub.publisher.horizon import HorizonReport
from zeroeventhub.publisher.progress import Registering, Registry
from zeroeventhub.publisher.read_only import Guest, PassingBy, explained, guest_for, visiting
from zeroeventhub.publisher.reader import Reader
from zeroeventhub.publisher.trimming import Trimmer, Trimming
from zeroeventhub.settings import Capacity

__all__ = [
    "AnsweringExtensions",
    "BoundFeed",
    "Roles",
    "expect_archive",
    "head_of",
    "on_commit",
    "visit",
]


@dataclass(frozen=True)
class Roles:
    """Hold those who answer for a feed, each asked through a connection.

    Attributes:
        reader: answers its readers.
        trimmer: trims its table; None where nothing tells what was trimmed.
        sealer: seals it into an archive; None where there is none.
        files: finds events in files of the archive; None where those are not shared.
        registry: notes how far consumers have come; None where that is not kept.
        compactor: deletes what later events stand for; None where all events are kept.
    """

    reader: Reader
    trimmer: Trimmer | None = None
    sealer: Sealer | None = None
    files: Files | None = None
    registry: Registry | None = None
    compactor: Compactor | None = None


_Asked = ParamSpec("_Asked")
_Found = TypeVar("_Found")


def expect_archive(sealer: Sealer | None) -> Sealer:
    """Return what seals a feed.

    Raises:
        ConfigurationError: the feed has no archive.
    """
    if sealer is None:
        raise ConfigurationError(
            "This feed has no archive to be sealed into: TableFeed(…, archive=Archive(…))."
        )
    return sealer


def on_commit(engine: Engine, told: Callable[[], None]) -> None:
    """Tell of every commit through an engine, while it is under way."""
    event.listen(engine, "commit", lambda _connection: told())


def head_of(connection: Connection, reader: Reader, guest: Guest, seconds: float) -> int:
    """Return the horizon, in passing where that can be done."""
    if not reader.may_glance:
        return visit(connection, reader, guest, reader.head)
    with reader.checks.doubting(), visiting(connection, PassingBy()):
        return reader.glance(connection, seconds)


def visit(
    connection: Connection,
    reader: Reader,
    guest: Guest,
    question: Callable[Concatenate[Connection, _Asked], _Found],
    /,
    *arguments: _Asked.args,
    **options: _Asked.kwargs,
) -> _Found:
    """Ask the database something, as a guest of its host."""
    if reader.checks.are_due:
        # Before anything is written: what writes may not be installed.
        with visiting(connection, guest):
            reader.checks.look_if_due(connection)
    with (
        reader.checks.doubting(),
        visiting(connection, guest, reader.step(connection)),
        reader.checks.looking_twice(connection),
    ):
        return question(connection, *arguments, **options)


class AnsweringExtensions:
    """Answer what is not written out below by the reader's method that an extension names."""

    _reader: Reader
    _ask: Callable[..., Any]

    if not TYPE_CHECKING:  # for the server, which finds methods by their names

        def __getattr__(self, name: str) -> Callable[..., Any]:
            """Return what asks the reader."""
            if name and name in {extension.method for extension in EXTENSIONS.values()}:
                return partial(self._ask, getattr(self._reader, name))
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")


class BoundFeed(Compacting, Registering, Trimming, AnsweringExtensions):
    """Read a table's feed through a sync engine."""

    def __init__(self, engine: Engine, capacity: Capacity, roles: Roles) -> None:
        self._reader = roles.reader
        self._trimmer = roles.trimmer
        self._sealer = roles.sealer
        self._files = roles.files
        self._registry = roles.registry
        self._compactor = roles.compactor
        self._engine = engine
        self._guest = guest_for(engine.dialect, capacity.statement_seconds)
        self._seconds = capacity.statement_seconds
        self.fetches = True
        """Whether what is not at hand is fetched; else NotAtHand says so."""

    def without_fetching(self) -> Self:
        """Return the same feed, which says by NotAtHand what has to be fetched from its archive."""
        other = copy(self)
        other.fetches = False
        return other

    def on_commit(self, told: Callable[[], None]) -> None:
        """Tell of every commit through the engine, while it is under way; see `ExtendedFeed`."""
        on_commit(self._engine, told)

    @property
    def has_open_digests(self) -> bool:
        """Tell whether everybody can make the digest that a cursor holds of an event."""
        return self._reader.has_open_digests

    @property
    def known_info(self) -> FeedInfo | None:
        """Describe the feed, if the database need not be asked for it; see `info`."""
        return None if self._reader.checks.are_due else self._reader.info

    def info(self) -> FeedInfo:
        """Describe the feed; see `Feed.info`."""
        known = self.known_info
        return self._ask(self._reader.described) if known is None else known

    def read(
        self,
        partition: int,
        cursor: str,
        limit: int,
        *,
        types: TypeFilter | None = None,
        stop: str | None = None,
        each: bool = False,
    ) -> Page:
        """Read a page; see `ExtendedFeed.read`."""
        return self._ask(
            self._reader.read, partition, cursor, limit, types=types, stop=stop, each=each
        )

    def read_pages(
        self,
        partition: int,
        cursor: str,
        limit: int,
        count: int,
        *,
        types: TypeFilter | None = None,
        stop: str | None = None,
    ) -> list[Page]:
        """Read pages, one behind the other; see `ExtendedFeed.read_pages`."""
        return self._ask(
            self._reader.read_pages, partition, cursor, limit, count, types=types, stop=stop
        )

    def vouch(self, cursors: Collection[str]) -> None:
        """Refuse cursors if history is another one by now; see `ExtendedFeed.vouch`."""
        self._ask(self._reader.vouch, cursors)

    def head(self) -> int:
        """Return the horizon; see `ExtendedFeed.head`."""
        with explained(), self._engine.connect() as connection:
            return head_of(connection, self._reader, self._guest, self._seconds)

    def horizon(self) -> HorizonReport:
        """Tell how far the feed may be read, since when that is so, and who holds it back."""
        return self._ask(self._reader.horizon)

    def splits(
        self, partition: int, count: int, *, start: str = FIRST, stop: str | None = None
    ) -> list[str]:
        """Return the cursors between pieces of a partition; see `ExtendedFeed.splits`.

        The largest piece holds at most about one and a half times the events of the average one,
        as long as pieces have a thousand events or more.
        """
        return self._ask(self._reader.splits, partition, count, start, stop)

    def lag(self, partition: int, cursor: str) -> Lag:
        """Count the settled events behind a cursor; see `ExtendedFeed.lag`.

        It stops at a million, with the ordering sequenced at a hundred thousand. How long ago the
        first of them happened is told by the feed's `time`, or, with that ordering and no `time`,
        by when it was given its position.
        """
        return self._ask(self._reader.lag, partition, cursor)

    def cursor_of_count(
        self, partition: int, cursor: str, events: int, *, stop: str | None = None
    ) -> CountedCursor:
        """Return the cursor behind so many events; see `ExtendedFeed.cursor_of_count`."""
        return self._ask(self._reader.cursor_of_count, partition, cursor, events, stop)

    def read_key(
        self,
        key: str,
        after_version: int,
        limit: int,
        *,
        partitions: Collection[int] | None = None,
    ) -> KeyPage:
        """Read the events of a key; see `ExtendedFeed.read_key`."""
        return self._ask(self._reader.read_key, key, after_version, limit, partitions=partitions)

    def cursor_of(
        self, event_id: str, partition: int = 0, *, types: TypeFilter | None = None
    ) -> str:
        """Return the cursor behind the event of an id; see `ExtendedFeed.cursor_of`."""
        return self._ask(self._reader.cursor_of, event_id, partition, types=types)

    def cursor_after(self, position: int) -> str:
        """Return the cursor that stands after a position.

        Args:
            position: 0, or one at or below the horizon; there need not be an event at it.

        Raises:
            BadCursor: it lies above the horizon: events may still appear below it.
        """
        return self._ask(self._reader.cursor_after, position)

    def cursor_at(self, moment: datetime, partition: int = 0) -> str:
        """Return the cursor that stands before all events of a moment or later.

        Args:
            moment: with a time zone, compared with the feed's `time`, or, with the ordering
                sequenced and no `time`, with when an event was given its position.
            partition: one of the feed's.

        Returns:
            The same cursor for the same moment as soon as one event of it or later is settled;
            until then, that of the horizon.

        Raises:
            ConfigurationError: the moment has no zone, or the feed does not know times.
        """
        return self._ask(self._reader.cursor_at, moment, partition)

    def check(self) -> list[Finding]:
        """Look at everything that the feed relies on in its database, and change nothing.

        What is missing is among the findings, and not raised.

        Raises:
            Unavailable: the database cannot answer just now.
        """
        with (
            explained(),
            self._engine.connect() as connection,
            visiting(connection, self._guest),
        ):
            return self._reader.checks.findings(connection)

    def segments(self, partition: int, cursor: str, *, stop: str | None = None) -> Segments:
        """Return the files in which events lie; see `ExtendedFeed.segments`."""
        files = expect_shared(self._files)
        return files.named(*self._ask(files.between, partition, cursor, stop))

    def seal(
        self,
        *,
        older_than: timedelta | None = None,
        segment_events: int = SEGMENT_EVENTS,
        segment_bytes: int = SEGMENT_BYTES,
        least: int = 1,
        told: Callable[[int], None] = unheard,
    ) -> Sealed:
        """Write what is settled, and not in the feed's archive yet, into segments of it.

        Any number of processes may do so at once, and any of them may die: what is in a segment is
        in one, and the archive is whole at every moment.

        Args:
            older_than: leave what happened later than so long ago; None to go up to the horizon.
            segment_events: how many events a segment has at most.
            segment_bytes: how much JSON it has, about, at most.
            least: how many events are worth a segment; fewer wait until there are more.
            told: is called now and then with how many events have been read.

        Raises:
            ConfigurationError: the feed has no archive, or that of another feed.
            Gone: the archive has another history than the table.
            Unavailable: the database or the store did not answer; seal again.
        """
        options = SealOptions(
            older_than=older_than,
            segment_events=segment_events,
            segment_bytes=segment_bytes,
            least=least,
            told=told,
        )
        return drive(expect_archive(self._sealer).sealing(options), self._ask)

    def erase(self, *, ids: Collection[str] = (), keys: Collection[str] = ()) -> int:
        """Take events out of the feed's archive for good; return how many.

        Their positions stay, so that all cursors do. What is still in the table is not touched, nor
        what others have kept: see docs/archive.md. Stopped anywhere, do it again.

        Args:
            ids: of the events, as text.
            keys: of more of them.

        Raises:
            ConfigurationError: the feed has no archive, or that of another feed, or no column of
                what is given.
            Unavailable: the archive's store did not answer.
        """
        return expect_archive(self._sealer).erase(ids, keys)

    def _ask(
        self,
        question: Callable[Concatenate[Connection, _Asked], _Found],
        *arguments: _Asked.args,
        **options: _Asked.kwargs,
    ) -> _Found:
        parts = Parts()
        while True:
            try:
                with explained(), self._engine.connect() as connection:
                    return visit(
                        connection, self._reader, self._guest, question, *arguments, **options
                    )
            except NotAtHand as missing:
                if not self.fetches:
                    raise
                parts.keep(missing.load())
