"""What is read of a feed: from where to where, and how."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, TypeAlias
from urllib.parse import urlsplit

import httpx

from zeroeventhub.bulk.offsets import Offsets
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import LARGEST_PAGE, TypeFilter

TIMEOUT = httpx.Timeout(30.0, connect=10.0)
"""Seconds for one operation on a connection."""

_SCHEMES = {"file", "http", "https"}

EARLIEST = "earliest"
LATEST = "latest"


@dataclass(frozen=True)
class Moments:
    """The cursors before the events of a moment, for each partition.

    Attributes:
        of_all: the moment for every partition without one of its own.
        by_partition: moments of single partitions.
    """

    of_all: datetime | None
    by_partition: Mapping[int, datetime]

    def of(self, partition: int) -> datetime:
        """Return the moment for a partition."""
        moment = self.by_partition.get(partition, self.of_all)
        if moment is None:
            raise ConfigurationError(
                f"startingOffsetsByTimestamp or endingOffsetsByTimestamp has no time for partition "
                f"{partition}: add it, or give the others one by startingTimestamp or "
                "endingTimestamp."
            )
        return moment


Boundary: TypeAlias = str | Offsets | Moments
"""Where to start or to end: EARLIEST, LATEST, offsets, or moments."""


@dataclass(frozen=True)
class Words:
    """The names of options and the advice in errors, which differ between Python and Spark."""

    start: str = "start"
    stop: str = "stop"
    end: str = "stop"
    segment_origins: str = "segment_origins"
    read_segments: str = "read_segments"
    corrupt_record: str = "_corrupt_record of type string"
    struct: str = "read a column data that is a struct"
    on_data_loss: str = (
        "To read what the feed still has, start again without cursors; an export, in another place."
    )


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """The options of a read: from where to where, and how.

    Attributes:
        starting: where to start; None for the default of the kind of read.
        ending: where a batch ends; `latest` is the horizon when it is planned.
        partitions: the feed's partitions to read; None for all.
        min_partitions: the least number of tasks, as far as the feed can be split.
        page_size: how many events to request at once, from 1 to 10,000.
        read_segments: whether to read old events from files, if the feed shares them.
        segment_origins: where such files may be, besides the feed's origin and signed URLs of
            object stores: origins such as `https://cdn.example`, or `file://`.
        attempts: how often a request is sent before a temporary error is final.
        types: the types of events to read; None for all.
        fail_on_data_loss: whether to fail if unread events are gone.
        begins_new_partitions: whether partitions that the starting offsets do not name are read
            from their first event; otherwise such offsets are refused.
        among: the partitions that a query's filters allow, existing or not; None for all.
        since: the query's filters allow no events before this moment; None for no limit.
        column_name_of_corrupt_record: the name of the column for events that do not fit the schema.
        words: how errors call these options.
    """

    starting: Boundary | None = None
    ending: Boundary = LATEST
    partitions: tuple[int, ...] | None = None
    min_partitions: int = 1
    page_size: int = LARGEST_PAGE
    read_segments: bool = True
    segment_origins: frozenset[str] = frozenset()
    attempts: int = 10
    types: TypeFilter | None = None
    fail_on_data_loss: bool = True
    begins_new_partitions: bool = False
    among: frozenset[int] | None = None
    since: datetime | None = None
    column_name_of_corrupt_record: str = "_corrupt_record"
    words: ClassVar[Words] = Words()


def origins_of(urls: Iterable[str]) -> frozenset[str]:
    """Return the origins of URLs; ValueError if they are not URLs of files that may be read."""
    if isinstance(urls, str) or any(urlsplit(url).scheme not in _SCHEMES for url in urls):
        raise ValueError
    return frozenset(map(origin_of, urls))


def origin_of(url: str) -> str:
    """Return the scheme, host and port of a URL; `file://` of all files."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return "file://"
    host, port = parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return f"{parts.scheme}://{host}:{port}"
