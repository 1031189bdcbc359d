"""Offsets: a cursor for each partition, and the ranges between two of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import FIRST, FeedInfo, is_cursor


@dataclass(frozen=True)
class Range:
    """The settled events of a partition between two cursors.

    Attributes:
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
        begins: by partition that these offsets are the first to name, the cursor before its first
            event: unlike FIRST, it tells whether that event has been trimmed.
    """

    cursors: Mapping[int, str]
    token: str | None = None
    starts_after: Mapping[int, int] = field(default_factory=dict)
    cursor_from: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    counts: Mapping[int, int] = field(default_factory=dict)
    begins: Mapping[int, str] = field(default_factory=dict, compare=False)

    @classmethod
    def within(
        cls,
        info: FeedInfo,
        cursors: Mapping[int, str],
        counts: Mapping[int, int] | None = None,
        begins: Mapping[int, str] | None = None,
        before: "Offsets | None" = None,
    ) -> "Offsets":
        """Return offsets with the order of their partitions in a layout.

        Cursors of the offsets `before` stay unless others have replaced their partitions: a process
        of the feed that has an older layout leaves out what other processes show again.
        """
        begun = [partition for partition in info.partitions if partition.id in cursors]
        lines = {one.id: one.cursor_from for one in begun if one.cursor_from}
        if before is not None:
            replaced = {former for one in info.partitions for former in one.cursor_from}
            kept = before.cursors.keys() - cursors.keys() - replaced
            cursors = {**cursors, **{one: before.cursors[one] for one in kept}}
            lines |= {one: line for one, line in before.cursor_from.items() if one in kept}
        return cls(
            cursors,
            info.token,
            {one.id: one.starts_after for one in begun if one.starts_after is not None},
            lines,
            counts or {},
            begins or {},
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
                {int(name): str(cursor) for name, cursor in document.get("begins", {}).items()},
            )
        except (AttributeError, OverflowError, TypeError, ValueError):
            raise ConfigurationError(
                "These are not offsets of a feed, which are a cursor for each partition."
            ) from None
        for partition, cursor in plain.items():
            if not (isinstance(cursor, str) and is_cursor(cursor)):
                raise ConfigurationError(f"The offset of partition {partition} is not a cursor.")
        return offsets

    def document(self) -> dict[str, Any]:
        """Return the JSON form; the same members give the same text."""
        document: dict[str, Any] = {"cursors": _by_name(self.cursors)}
        if self.begins:
            document["begins"] = _by_name(self.begins)
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
        begin = start.cursor(partition, end.cursor_from.get(partition, ()))
        begin = begin or end.begins.get(partition, FIRST)
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


def _by_name(values: Mapping[int, Any]) -> dict[str, Any]:
    return {str(number): values[number] for number in sorted(values)}
