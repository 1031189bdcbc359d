"""How a feed's table is sealed into its archive: what is asked of which, in which order; no I/O."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.archived.seal_query import SealedRows

if TYPE_CHECKING:
    from zeroeventhub.archive.archive import Archive
    from zeroeventhub.archive.draft import Draft

__all__ = [
    "SEGMENT_BYTES",
    "SEGMENT_EVENTS",
    "Ask",
    "SealOptions",
    "Sealed",
    "Work",
    "sealing",
    "unheard",
]

AT_ONCE = 10_000
"""How many rows one statement reads."""

SEGMENT_EVENTS = 1_000_000
"""How many events a segment has, at most."""

SEGMENT_BYTES = 256 * 1024 * 1024
"""How much JSON a segment has, at most, but for the last events: it is made in memory."""


def unheard(events: int) -> None:
    """Tell nobody how far sealing is."""


@dataclass(frozen=True, kw_only=True)
class SealOptions:
    """Say how a table is sealed.

    Attributes:
        older_than: leave what happened later than so long ago; None to go up to the horizon.
        segment_events: how many events a segment has at most.
        segment_bytes: how much JSON it has, about, at most.
        least: how many events are worth a segment; fewer wait until there are more.
        told: is told after each statement how many events have been read.
    """

    older_than: timedelta | None = None
    segment_events: int = SEGMENT_EVENTS
    segment_bytes: int = SEGMENT_BYTES
    least: int = 1
    told: Callable[[int], None] = unheard

    def __post_init__(self) -> None:
        """Refuse segments of nothing.

        Raises:
            ConfigurationError: a number is not above zero.
        """
        for name in ("segment_events", "segment_bytes", "least"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} has to be above zero.")


@dataclass(frozen=True)
class Sealed:
    """Say what was sealed.

    Attributes:
        segments: how many segments were added.
        events: how many events are in them.
        size: how many bytes they have.
        position: up to where all is sealed now.
    """

    segments: int
    events: int
    size: int
    position: int


@dataclass(frozen=True)
class Ask:
    """Ask the feed's table something, through a connection.

    Attributes:
        question: is given the connection.
        arguments: and these.
    """

    question: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Work:
    """Do something that takes a while, without a connection.

    Attributes:
        function: what to do.
        is_awaited: whether it has to be done before the next step is; else only before the next
            work is begun.
    """

    function: Callable[[], Any]
    is_awaited: bool = True


class _Table(Protocol):
    """Answer what sealing asks of a table; see `Sealer`."""

    def sealable(
        self, connection: Any, last: str | None, sealed: int, older_than: timedelta | None
    ) -> int:
        """Return the position up to which the table can be sealed."""

    def rows(self, connection: Any, after: int, until: int, limit: int) -> tuple[SealedRows, str]:
        """Read rows; return them and the cursor behind the last one."""


def sealing(
    archive: "Archive", feed: str, table: _Table, options: SealOptions
) -> Generator[Ask | Work, Any, Sealed]:
    """Seal a table.

    Args:
        archive: where to.
        feed: the digest by which the archive knows the feed.
        table: what is asked of it.
        options: how.

    Yields:
        What is to be asked and done; each is answered by what came of it.

    Raises:
        ConfigurationError: the archive is of another feed.
        Gone: it is of another history of this feed.
    """
    segments = events = size = 0
    until = None
    while True:
        known = yield Work(archive.look)
        archive.expect(feed)
        if until is None:
            until = yield Ask(table.sealable, (known.last, known.sealed, options.older_than))
        if known.sealed >= until:
            break
        draft = archive.draft()
        last = yield from _collected(
            table, draft, options, after=known.sealed, until=until, before=events
        )
        if last is None or draft.places < options.least:
            break
        made = yield Work(partial(draft.make, known.sealed, *last))
        if (yield Work(partial(archive.add, made, feed))):
            segments, size = segments + 1, size + made.segment.size
            events += made.segment.events
    return Sealed(segments, events, size, archive.manifest.sealed)


def _collected(
    table: _Table, draft: "Draft", options: SealOptions, *, after: int, until: int, before: int
) -> Generator[Ask | Work, Any, tuple[int, str] | None]:
    """Collect the events of a segment; return its last position and the cursor behind it."""
    last, places = None, 0
    while places < options.segment_events and draft.size < options.segment_bytes:
        limit = min(AT_ONCE, options.segment_events - places)
        rows, cursor = yield Ask(table.rows, (after, until, limit))
        if rows.last is None:
            break
        # While the next rows are read, so that its size may be that of one step before.
        yield Work(partial(draft.add, rows.columns), is_awaited=False)
        after, places = rows.last[0], places + rows.count
        last = after, cursor
        options.told(before + places)
        if rows.count < limit:
            break
    yield Work(lambda: None)
    return last
