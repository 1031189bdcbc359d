"""Offsets of streams: a cursor for each partition, and how Spark stores them."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import FIRST, FeedInfo, is_cursor


@dataclass(frozen=True)
class Range:
    """The settled events of a partition between two cursors.

    Attributes:
        partition: the partition's id.
        start: the cursor before the first event.
        stop: the cursor after the last event.
        count: the number of events if the feed cannot stop at a cursor (SPEC 9.4); else None.
    """

    partition: int
    start: str
    stop: str
    count: int | None = None


@dataclass(frozen=True)
class Offsets:
    """A cursor for each partition that a stream has begun.

    Attributes:
        cursors: by partition, the cursor up to which it is read.
        token: the version of the feed's layout when this was planned; None for a feed of v1.
        starts_after: by partition, its parent, which is read to its end first (SPEC 8.3).
        cursor_from: by partition, the partitions whose cursors are valid in it, nearest first
            (SPEC 8.4).
        counts: by partition, how many events have been read since the query began, if the feed
            cannot stop at a cursor.
    """

    cursors: Mapping[int, str]
    token: str | None = None
    starts_after: Mapping[int, int] = field(default_factory=dict)
    cursor_from: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    counts: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def within(
        cls, info: FeedInfo, cursors: Mapping[int, str], counts: Mapping[int, int] | None = None
    ) -> "Offsets":
        """Return offsets with the order of their partitions in a layout."""
        begun = [partition for partition in info.partitions if partition.id in cursors]
        return cls(
            cursors,
            info.token,
            {one.id: one.starts_after for one in begun if one.starts_after is not None},
            {one.id: one.cursor_from for one in begun if one.cursor_from},
            counts or {},
        )

    @classmethod
    def of(cls, document: Any) -> "Offsets":
        """Read the JSON form of offsets, or cursors by partition; refuse any other document."""
        try:
            plain = document.get("cursors", document)
            offsets = cls(
                {int(partition): cursor for partition, cursor in plain.items()},
                document.get("token"),
                {int(child): int(one) for child, one in document.get("startsAfter", {}).items()},
                {
                    int(heir): tuple(int(one) for one in ancestors)
                    for heir, ancestors in document.get("cursorFrom", {}).items()
                },
                {int(name): int(count) for name, count in document.get("counts", {}).items()},
            )
        except (AttributeError, OverflowError, TypeError, ValueError):
            raise ConfigurationError(
                'These are not offsets of a feed, such as {"0":"…","1":"…"} with a cursor by '
                "partition."
            ) from None
        for partition, cursor in offsets.cursors.items():
            if not _is_cursor(cursor):
                raise ConfigurationError(f"The offset of partition {partition} is not a cursor.")
        return offsets

    def document(self) -> dict[str, Any]:
        """Return the JSON form; equal offsets give equal texts."""
        document: dict[str, Any] = {"cursors": _by_name(self.cursors)}
        if self.counts:
            document["counts"] = _by_name(self.counts)
        if self.cursor_from:
            lines = self.cursor_from.items()
            document["cursorFrom"] = _by_name({heir: [*map(str, line)] for heir, line in lines})
        if self.starts_after:
            parents = self.starts_after.items()
            document["startsAfter"] = _by_name({child: str(parent) for child, parent in parents})
        if self.token is not None:
            document["token"] = self.token
        return document

    def cursor(self, partition: int, ancestors: tuple[int, ...]) -> str | None:
        """Return where to read a partition from; None if it has not been begun (SPEC 8.4).

        The cursors of its ancestors, nearest first, are valid in it.
        """
        line = (partition, *ancestors)
        return next((self.cursors[one] for one in line if one in self.cursors), None)


def chains(start: Offsets, end: Offsets) -> list[list[Range]]:
    """Return the ranges between two offsets, in chains that tasks may read in parallel.

    A task reads the ranges of its chain in order. The same offsets always give the same ranges, as
    the feed is not asked.
    """
    found: dict[int, list[Range]] = {}
    parents = {one: end.starts_after.get(one) for one in sorted(end.cursors)}
    for partition in parents_first(parents):
        stop = end.cursors[partition]
        begin = start.cursor(partition, end.cursor_from.get(partition, ())) or FIRST
        # A partition waits for its parent only if events of the parent are read.
        chain = found.setdefault(
            partition, found.get(end.starts_after.get(partition, partition)) or []
        )
        count = None
        if partition in end.counts:
            count = end.counts[partition] - start.counts.get(partition, 0)
        if begin != stop and count != 0:
            chain.append(Range(partition, begin, stop, count))
    unique = {id(chain): chain for chain in found.values() if chain}
    return list(unique.values())


def parents_first(starts_after: Mapping[int, int | None]) -> list[int]:
    """Sort partitions so that each comes after its parent, if that is one of them."""
    parents = {
        one: [parent] if parent is not None and parent in starts_after else []
        for one, parent in starts_after.items()
    }
    return [*TopologicalSorter(parents).static_order()]


def _is_cursor(value: Any) -> bool:
    """Return whether a value has the form of a cursor."""
    return isinstance(value, str) and bool(is_cursor(value))


def _by_name(values: Mapping[int, Any]) -> dict[str, Any]:
    return {str(number): values[number] for number in sorted(values)}


_ELSEWHERE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""How the URL of a remote folder begins; unlike a Windows drive, its scheme has two letters."""

_NOTHING = "-"
"""What Spark writes for a source that has no offsets yet."""


def committed_offsets(folder: str, source: str | None = None) -> Offsets:
    """Return where the committed batches of a stream end.

    Args:
        folder: the stream's checkpoint.
        source: the feed among the stream's sources: its number from 0 on, or its name in the
            query; None if the stream has one source.

    Raises:
        ConfigurationError: there is no such checkpoint or source, or a batch is not committed.
    """
    if _ELSEWHERE.match(folder):
        raise ConfigurationError(
            f"{folder} is not a folder of this machine: copy its folders offsets and commits into "
            "a local folder, and give that one."
        )
    batch = _last_batch(Path(folder))
    sources = _sources(Path(folder, "offsets", str(batch)))
    if source is None and len(sources) == 1:
        (source,) = sources
    if source is None or source not in sources:
        raise ConfigurationError(
            f"The stream has {len(sources)} sources, {', '.join(sources)}: choose the one that is "
            "the feed."
        )
    if sources[source] == _NOTHING:
        raise ConfigurationError(f"The stream has not read anything from source {source} yet.")
    try:
        document = json.loads(sources[source])
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or "cursors" not in document:
        raise ConfigurationError(f"Source {source} of the stream is not a feed.")
    return Offsets.of(document)


def _last_batch(folder: Path) -> int:
    """Return the number of the last batch; refuse one that is not committed."""
    planned, committed = _numbers(folder / "offsets"), _numbers(folder / "commits")
    if not planned:
        raise ConfigurationError(
            f"{folder} is not the checkpoint of a stream, or the stream has not read anything yet: "
            "it has no folder offsets with a file for each batch."
        )
    last = max(planned)
    if last not in committed:
        raise ConfigurationError(
            f"Batch {last} of the stream was planned and is not committed: its sink may have a "
            "part of it. Run the query once with Trigger.AvailableNow, which finishes the batch."
        )
    _lines(folder / "commits" / str(last))
    return last


def _numbers(folder: Path) -> set[int]:
    """Return the numbers of the batches that have a file in a folder."""
    try:
        return {int(one.name) for one in folder.iterdir() if re.fullmatch("[0-9]+", one.name)}
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be read: {error.strerror}.") from None


def _sources(file: Path) -> dict[str, str]:
    """Return the text of each source's offsets in a batch's file, by number or name."""
    version, _, *offsets = _lines(file)
    if version == "v1":
        return {str(number): text for number, text in enumerate(offsets)}
    if version == "v2":
        return {name: text for name, _, text in (line.partition(":") for line in offsets)}
    raise ConfigurationError(
        f"{file} has the format {version[:10]!r}, and this release reads only v1 and v2: update "
        "zeroeventhub."
    )


def _lines(file: Path) -> list[str]:
    """Return the lines of a file of Spark's: a version, data of the batch, and more."""
    try:
        lines = file.read_text("utf-8").removesuffix("\n").split("\n")
    except (OSError, ValueError):
        lines = []
    if len(lines) < 2:  # noqa: PLR2004 - the two that every file has
        raise ConfigurationError(f"{file} is not a whole file of Spark's, or cannot be read.")
    return lines
