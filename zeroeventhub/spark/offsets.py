"""Where a read stands in every partition of a feed: Spark's offsets, and the ranges between two.

As JSON, which Spark keeps in a query's checkpoint:

    {"token": "7", "cursors": {"0": "2-1042-…", "1": "2-977-…"}}

How partitions follow one another stands there as well, so that a batch that was planned before a
restart is the same one after it, whatever has become of the partitions meanwhile.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import FIRST, LAST, FeedInfo, is_cursor

__all__ = ["Offsets", "Range", "chains"]


@dataclass(frozen=True)
class Range:
    """Name events of a partition that are settled: those behind a cursor, up to another.

    Attributes:
        partition: the partition's id.
        start: the cursor before the first of them.
        stop: the cursor behind the last of them.
        count: how many they are, where the feed cannot stop by itself (SPEC 9.4); else None.
    """

    partition: int
    start: str
    stop: str
    count: int | None = None


@dataclass(frozen=True)
class Offsets:
    """Hold a cursor for each partition that has been begun.

    Attributes:
        cursors: by partition, the place up to which it is read.
        token: the version of the feed's layout when this was planned; None for a feed of v1.
        starts_after: by partition, the one that is read to its end before (SPEC 8.3).
        cursor_from: by partition, those whose cursors are valid in it, nearest first (SPEC 8.4).
        counts: by partition, how many events have been read since the query began, where the feed
            cannot stop by itself.
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
        """Say how the partitions of some cursors follow one another.

        Args:
            info: the layout that they are of.
            cursors: by partition.
            counts: by partition, of events that have been read.
        """
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
        """Read offsets, or cursors by partition alone.

        Raises:
            ConfigurationError: it is neither.
        """
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
            if not _is_place(cursor):
                raise ConfigurationError(f"The offset of partition {partition} is not a cursor.")
        return offsets

    def document(self) -> dict[str, Any]:
        """Return the JSON form: equal places give equal texts."""
        document: dict[str, Any] = {"cursors": _by_name(self.cursors)}
        if self.counts:
            document["counts"] = _by_name(self.counts)
        if self.cursor_from:
            ancestors = {heir: list(map(str, line)) for heir, line in self.cursor_from.items()}
            document["cursorFrom"] = _by_name(ancestors)
        if self.starts_after:
            parents = {child: str(parent) for child, parent in self.starts_after.items()}
            document["startsAfter"] = _by_name(parents)
        if self.token is not None:
            document["token"] = self.token
        return document

    def place(self, partition: int, ancestors: tuple[int, ...]) -> str | None:
        """Return where to read a partition from; None where it has not been begun (SPEC 8.4).

        Args:
            partition: the partition.
            ancestors: those whose cursors are valid in it, nearest first.
        """
        line = (partition, *ancestors)
        return next((self.cursors[one] for one in line if one in self.cursors), None)


def chains(start: Offsets, end: Offsets) -> list[list[Range]]:
    """Return the ranges between two offsets, each behind the ranges that are read before it.

    Nothing is asked of the feed for it: whenever it is asked for, it is the same.

    Args:
        start: where a batch starts.
        end: where it ends.

    Returns:
        Ranges in chains. Those of one chain are read one after the other, those of several side by
        side.
    """
    found: dict[int, list[Range]] = {}
    for partition in _parents_first(end):
        stop = end.cursors[partition]
        begin = start.place(partition, end.cursor_from.get(partition, ())) or FIRST
        parent = end.starts_after.get(partition, partition)
        # Where nothing is read of the parent, nobody waits for it.
        chain = found.setdefault(partition, found.get(parent) or [])
        count = None
        if partition in end.counts:
            count = end.counts[partition] - start.counts.get(partition, 0)
        if begin != stop and count != 0:
            chain.append(Range(partition, begin, stop, count))
    unique = {id(chain): chain for chain in found.values() if chain}
    return list(unique.values())


def _is_place(cursor: Any) -> bool:
    """Tell whether a value has the form of a cursor, or is the name of one."""
    return isinstance(cursor, str) and (cursor in {FIRST, LAST} or is_cursor(cursor))


def _parents_first(offsets: Offsets) -> list[int]:
    """Sort partitions so that each comes behind the one that it starts after."""

    def depth(partition: int) -> int:
        parent = offsets.starts_after.get(partition)
        return 0 if parent is None else 1 + depth(parent)

    return sorted(offsets.cursors, key=lambda partition: (depth(partition), partition))


def _by_name(values: Mapping[int, Any]) -> dict[str, Any]:
    return {str(number): values[number] for number in sorted(values)}
