"""The partitions of a feed, which keys each holds, and how they came to be."""

from collections.abc import Iterable
from dataclasses import astuple, dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from hashlib import md5, sha256

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import HIGHEST_PARTITION, FeedInfo, Partition

__all__ = ["HASHES", "Layout", "Share", "key_hash"]

HASHES = 2**32
"""How many hashes of keys there are: 0 to one less."""


def key_hash(key: str | int) -> int:
    """Return the hash of a key: the first four bytes of the MD5 of its text, highest byte first.

    The text is encoded in UTF-8; that of a number is its decimal digits, with a minus if need be.

    Raises:
        ConfigurationError: the key is neither text nor a whole number.
    """
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise ConfigurationError(f"A key is text or a whole number; {key!r} is neither.")
    text = key if isinstance(key, str) else format(int(key), "d")
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"The key {key!r} has no UTF-8: {error}") from error
    return int.from_bytes(md5(encoded, usedforsecurity=False).digest()[:4], "big")


@dataclass(frozen=True)
class Share:
    """Describe one partition, and which keys are its own.

    Attributes:
        id: 0 to 32767.
        modulus: what hashes of keys are divided by.
        remainder: what is left for the keys of this partition.
        closed: whether no event will ever be added.
        starts_after: the closed partition that has to be read to its end first.
        cursor_from: partitions whose cursors are valid here, nearest first; they are gone.
    """

    id: int
    modulus: int
    remainder: int
    closed: bool = False
    starts_after: int | None = None
    cursor_from: tuple[int, ...] = ()

    def holds(self, hashed: int) -> bool:
        """Tell whether keys of a hash are this partition's."""
        return hashed % self.modulus == self.remainder

    def divide(self, number: int, count: int) -> "Share":
        """Return one of so many equal parts of the keys."""
        if self.modulus * count > HASHES:
            raise ConfigurationError(f"Partition {self.id} holds too few hashes to be divided.")
        return replace(
            self, modulus=self.modulus * count, remainder=self.remainder + number * self.modulus
        )


@dataclass(frozen=True)
class Layout:
    """Describe the partitions of a feed; what changes them returns another layout.

    Layouts that came to be in the same way are equal in all processes, and so are their tokens.
    Start with `Layout.of`. See docs/partitions.md for what has to happen beside a change.

    Attributes:
        partitions: those that there are to read.
        dropped: those that were closed and are shown no more.
        next_id: the lowest id that no partition has had.
        expected: ids that a later layout will show, whose events may be there already.
    """

    partitions: tuple[Share, ...]
    dropped: tuple[Share, ...]
    next_id: int
    expected: frozenset[int] = field(default=frozenset(), compare=False)

    @classmethod
    def of(cls, partitions: int) -> "Layout":
        """Start with partitions 0 to N-1, each with every N-th hash.

        Raises:
            ConfigurationError: the protocol has no such number of partitions.
        """
        FeedInfo.of(partitions)
        shares = (Share(number, partitions, number) for number in range(partitions))
        return cls(tuple(shares), (), partitions)

    @cached_property
    def token(self) -> str:
        """Return the token: the same for equal layouts, different for different ones."""
        shares = [[astuple(share) for share in group] for group in (self.partitions, self.dropped)]
        described = repr((*shares, self.next_id))
        return sha256(described.encode()).hexdigest()[:12]

    @property
    def ids(self) -> frozenset[int]:
        """Name the partitions that an event may rightly be in, read or not."""
        return frozenset(share.id for share in (*self.partitions, *self.dropped)) | self.expected

    @property
    def is_by_hash_alone(self) -> bool:
        """Tell whether the hash of a key says where its events are, whenever they were written."""
        shares = (Fraction(1, share.modulus) for share in (*self.partitions, *self.dropped))
        return sum(shares) <= 1

    def info(
        self, *, exactly_once: bool = True, extensions: Iterable[str] = frozenset()
    ) -> FeedInfo:
        """Describe the feed.

        Args:
            exactly_once: whether the publisher promises never to publish an event twice.
            extensions: what the feed can do beyond the protocol.
        """
        shown = (
            Partition(share.id, share.closed, share.starts_after, share.cursor_from)
            for share in self.partitions
        )
        return FeedInfo(tuple(shown), self.token, exactly_once, frozenset(extensions))

    def partition_of(self, key: str | int) -> int:
        """Return the partition that a new event of a key is written to.

        Raises:
            ConfigurationError: its partition was closed and nothing goes on from there.
        """
        hashed = key_hash(key)
        for share in self.partitions:
            if not share.closed and share.holds(hashed):
                return share.id
        raise ConfigurationError(
            f"The partition of the key {key!r} was closed, and nothing goes on from there: split "
            "it instead of closing it."
        )

    def close(self, partition: int) -> "Layout":
        """Say that a partition will never again be written to, and has no successor.

        Raises:
            ConfigurationError: there is no such partition, or it is closed.
        """
        closed = replace(self._open(partition), closed=True)
        shares = (closed if share.id == partition else share for share in self.partitions)
        return replace(self, partitions=tuple(shares), expected=frozenset())

    def split(self, partition: int, *, into: int) -> "Layout":
        """Close a partition and go on with its keys in new ones that start after it (Method 1).

        Raises:
            ConfigurationError: there is no such partition, it is closed, or ids have run out.
        """
        if into < 1:
            raise ConfigurationError(f"A partition is split into 1 or more, not into {into}.")
        parent = self._open(partition)
        children = [
            replace(
                parent.divide(number, into), id=identity, starts_after=partition, cursor_from=()
            )
            for number, identity in enumerate(self._new_ids(into))
        ]
        closed = self.close(partition)
        return replace(
            closed,
            partitions=(*closed.partitions, *children),
            next_id=closed.next_id + into,
        )

    def redistribute(self, *, by: int) -> "Layout":
        """Put new partitions in the place of all, with their history and cursors (Method 2).

        Args:
            by: how many new partitions take the place of one.

        Raises:
            ConfigurationError: ids have run out.
        """
        if by < 2:  # noqa: PLR2004 - one for one would change nothing
            raise ConfigurationError(f"A partition is replaced by 2 or more, not by {by}.")
        pairs = [
            (parent, parent.divide(number, by))
            for parent in self.partitions
            for number in range(by)
        ]
        # In the order of remainders, so that an id is a remainder and a constant.
        pairs.sort(key=lambda pair: (pair[1].modulus, pair[1].remainder, pair[0].id))
        identities = self._new_ids(len(pairs))
        heirs = [
            (parent.starts_after, replace(heir, id=identity, cursor_from=_line(parent)))
            for identity, (parent, heir) in zip(identities, pairs, strict=True)
        ]
        family = [heir for _, heir in heirs]
        return replace(
            self,
            partitions=tuple(
                replace(heir, starts_after=_heir_of(after, family, heir)) for after, heir in heirs
            ),
            next_id=identities.stop,
            expected=frozenset(),
        )

    def drop(self, partition: int) -> "Layout":
        """Show a closed partition no more; those that started after it start without it.

        Consumers that have not read its events lose them.

        Raises:
            ConfigurationError: there is no such partition, or it is not closed.
        """
        gone = self._find(partition)
        if not gone.closed:
            raise ConfigurationError(f"Partition {partition} is not closed: it stays to be read.")
        rest = (
            replace(share, starts_after=gone.starts_after)
            if share.starts_after == partition
            else share
            for share in self.partitions
            if share.id != partition
        )
        return replace(
            self,
            partitions=tuple(rest),
            dropped=(*self.dropped, gone),
            expected=frozenset(),
        )

    def expecting(self, later: "Layout") -> "Layout":
        """Return this layout with room for events that are written by a later one (Method 1).

        It is equal to this one and has its token: consumers see no difference.

        Raises:
            ConfigurationError: consumers of this layout would miss such events, because the later
                one has partitions that take over cursors.
        """
        shown = {share.id for share in later.partitions} | {share.id for share in later.dropped}
        if later.next_id < self.next_id or any(share.id not in shown for share in self.partitions):
            raise ConfigurationError(
                "The later layout does not have all partitions of this one, so cursors would pass "
                "over its events before they are shown: let all readers change before any writer."
            )
        return replace(self, expected=later.ids)

    def heirs(self, written: int) -> list[Share]:
        """Return the partitions among which events written to one are shared by their keys' hash.

        Args:
            written: the id of a partition of this layout or of an earlier one.
        """
        return [share for share in (*self.partitions, *self.dropped) if written in _line(share)]

    def _find(self, partition: int) -> Share:
        for share in self.partitions:
            if share.id == partition:
                return share
        raise ConfigurationError(f"The layout has no partition {partition}.")

    def _open(self, partition: int) -> Share:
        share = self._find(partition)
        if share.closed:
            raise ConfigurationError(f"Partition {partition} is closed already.")
        return share

    def _new_ids(self, count: int) -> range:
        stop = self.next_id + count
        if stop > HIGHEST_PARTITION + 1:
            raise ConfigurationError(
                f"Ids of partitions go up to {HIGHEST_PARTITION} and are not given again: "
                f"{count} more do not fit above {self.next_id - 1}."
            )
        return range(self.next_id, stop)


def _line(share: Share) -> tuple[int, ...]:
    """Return the partition and those it took over from, nearest first."""
    return (share.id, *share.cursor_from)


def _heir_of(parent: int | None, family: list[Share], child: Share) -> int | None:
    """Find the heir of a closed parent that holds the keys of a child."""
    if parent is None:
        return None
    return next(
        share.id
        for share in family
        if share.cursor_from[0] == parent and share.holds(child.remainder)
    )
