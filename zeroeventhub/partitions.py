"""Layouts: the partitions of a feed, the keys of each, and how they change."""

from collections.abc import Iterable
from dataclasses import astuple, dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from hashlib import md5, sha256

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import HIGHEST_PARTITION, FeedInfo, Partition

HASHES = 2**32
"""The number of different hashes of keys."""


def key_hash(key: str | int) -> int:
    """Return the hash of a key: the first four bytes of the MD5 of its text in UTF-8, big-endian.

    The text of a number is its decimal digits, after a minus if it is negative.

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
    """Describe one partition and its keys; see `Partition`.

    Attributes:
        modulus: the divisor of the keys' hashes.
        remainder: the remainder of the hashes of this partition's keys.
    """

    id: int
    modulus: int
    remainder: int
    closed: bool = False
    starts_after: int | None = None
    cursor_from: tuple[int, ...] = ()

    def holds(self, hashed: int) -> bool:
        """Return whether keys with a hash belong to this partition."""
        return hashed % self.modulus == self.remainder

    def divide(self, number: int, count: int) -> "Share":
        """Return one of `count` equal parts of the keys."""
        if self.modulus * count > HASHES:
            raise ConfigurationError(f"Partition {self.id} holds too few hashes to be divided.")
        return replace(
            self, modulus=self.modulus * count, remainder=self.remainder + number * self.modulus
        )


@dataclass(frozen=True)
class Layout:
    """Describe the partitions of a feed; each change returns another layout.

    Start with `Layout.of`. The same changes lead to equal layouts and tokens in all processes.
    docs/partitions.md says what else a change needs.

    Example:
        layout = Layout.of(4).split(0, into=2)
        partition = layout.partition_of("customer-17")
        feed = TableFeed(orders, data="data", partition="part", partitions=layout)

    Attributes:
        partitions: the partitions to read.
        dropped: closed partitions that discovery no longer lists.
        next_id: the lowest id that no partition has had.
        expected: ids of a later layout, whose events writers may have written already.
    """

    partitions: tuple[Share, ...]
    dropped: tuple[Share, ...]
    next_id: int
    expected: frozenset[int] = field(default=frozenset(), compare=False)

    @classmethod
    def of(cls, partitions: int) -> "Layout":
        """Start with partitions 0 to N-1, each with every N-th hash.

        Args:
            partitions: how many, 1 to 32768.

        Raises:
            ConfigurationError: the number is outside of this range.
        """
        FeedInfo.of(partitions)
        shares = (Share(number, partitions, number) for number in range(partitions))
        return cls(tuple(shares), (), partitions)

    @cached_property
    def token(self) -> str:
        """The token: the same for equal layouts, different for different ones."""
        shares = [[astuple(share) for share in group] for group in (self.partitions, self.dropped)]
        described = repr((*shares, self.next_id))
        return sha256(described.encode()).hexdigest()[:12]

    @cached_property
    def _open(self) -> dict[int, dict[int, int]]:
        """The ids of the partitions that get events, by modulus and remainder."""
        found: dict[int, dict[int, int]] = {}
        for share in self.partitions:
            if not share.closed:
                found.setdefault(share.modulus, {})[share.remainder] = share.id
        return found

    @property
    def ids(self) -> frozenset[int]:
        """The ids of all partitions that may have events."""
        return frozenset(share.id for share in (*self.partitions, *self.dropped)) | self.expected

    @property
    def coming(self) -> frozenset[int]:
        """The ids of expected partitions that this layout does not have."""
        return frozenset(one for one in self.expected if one >= self.next_id)

    @property
    def is_by_hash_alone(self) -> bool:
        """Whether the hash of a key alone tells the partition of all its events, old and new."""
        shares = (Fraction(1, share.modulus) for share in (*self.partitions, *self.dropped))
        return sum(shares) <= 1

    def info(
        self, *, exactly_once: bool = True, extensions: Iterable[str] = frozenset()
    ) -> FeedInfo:
        """Describe the feed.

        Args:
            exactly_once: whether the publisher promises never to publish an event twice.
            extensions: the names of the feed's extensions.
        """
        shown = (
            Partition(share.id, share.closed, share.starts_after, share.cursor_from)
            for share in self.partitions
        )
        return FeedInfo(tuple(shown), self.token, exactly_once, frozenset(extensions))

    def partition_of(self, key: str | int) -> int:
        """Return the partition that a new event of a key is written to.

        Args:
            key: the key.

        Raises:
            ConfigurationError: the key is neither text nor a whole number, or its partition was
                closed without a successor.
        """
        hashed = key_hash(key)
        for modulus, ids in self._open.items():
            if (found := ids.get(hashed % modulus)) is not None:
                return found
        raise ConfigurationError(
            f"The partition of the key {key!r} was closed and has no successor: split it instead "
            "of closing it."
        )

    def close(self, partition: int) -> "Layout":
        """Close a partition: it gets no more events, and has no successor.

        Args:
            partition: its id.

        Raises:
            ConfigurationError: there is no such partition, or it is closed.
        """
        closed = replace(self._find(partition, is_open=True), closed=True)
        shares = (closed if share.id == partition else share for share in self.partitions)
        return replace(self, partitions=tuple(shares), expected=frozenset())

    def split(self, partition: int, *, into: int) -> "Layout":
        """Close a partition, and continue with its keys in new ones that start after it (Method 1).

        Args:
            partition: its id.
            into: the number of new partitions, from 1 on.

        Raises:
            ConfigurationError: there is no such partition, it is closed, the number is too small,
                or the ids are used up.
        """
        if into < 1:
            raise ConfigurationError(f"A partition is split into 1 or more, not into {into}.")
        parent = self._find(partition, is_open=True)
        children = [
            replace(
                parent.divide(number, into), id=identity, starts_after=partition, cursor_from=()
            )
            for number, identity in enumerate(self._new_ids(into))
        ]
        closed = self.close(partition)
        shares = (*closed.partitions, *children)
        return replace(closed, partitions=shares, next_id=closed.next_id + into)

    def redistribute(self, *, by: int) -> "Layout":
        """Replace each partition by several, which inherit its history and cursors (Method 2).

        Args:
            by: the number of new partitions for each old one, from 2 on.

        Raises:
            ConfigurationError: the number is too small, or the ids are used up.
        """
        if by < 2:  # noqa: PLR2004 - one for one would change nothing
            raise ConfigurationError(f"A partition is replaced by 2 or more, not by {by}.")
        pairs = [
            (parent, parent.divide(number, by))
            for parent in self.partitions
            for number in range(by)
        ]
        # In the order of remainders, so that an id is a remainder plus a constant.
        pairs.sort(key=lambda pair: (pair[1].modulus, pair[1].remainder, pair[0].id))
        identities = self._new_ids(len(pairs))
        heirs = [
            replace(heir, id=identity, cursor_from=(parent.id, *parent.cursor_from))
            for identity, (parent, heir) in zip(identities, pairs, strict=True)
        ]
        shares = (
            replace(heir, starts_after=_heir_of(heir.starts_after, heirs, heir)) for heir in heirs
        )
        return replace(
            self, partitions=tuple(shares), next_id=identities.stop, expected=frozenset()
        )

    def drop(self, partition: int) -> "Layout":
        """Remove a closed partition; those that start after it no longer wait for it.

        Consumers that have not read its events lose them.

        Args:
            partition: its id.

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
        dropped = (*self.dropped, gone)
        return replace(self, partitions=tuple(rest), dropped=dropped, expected=frozenset())

    def expecting(self, later: "Layout") -> "Layout":
        """Return this layout, prepared for events that writers of a later one write (Method 1).

        It is equal to this one and has its token: consumers see no difference.

        Args:
            later: the layout of these writers.

        Raises:
            ConfigurationError: consumers of this layout would miss such events, because partitions
                of the later one inherit cursors.
        """
        shown = {share.id for share in later.partitions} | {share.id for share in later.dropped}
        if later.next_id < self.next_id or any(share.id not in shown for share in self.partitions):
            raise ConfigurationError(
                "The later layout does not have all partitions of this one, so cursors would pass "
                "over its events before they are shown: let all readers change before any writer."
            )
        return replace(self, expected=later.ids)

    def heirs(self, written: int) -> list[Share]:
        """Return the partitions that now hold the events once written to a partition.

        Args:
            written: the id of a partition of this layout or of an earlier one.
        """
        shares = (*self.partitions, *self.dropped)
        return [share for share in shares if written in (share.id, *share.cursor_from)]

    def _find(self, partition: int, *, is_open: bool = False) -> Share:
        for share in self.partitions:
            if share.id == partition:
                if is_open and share.closed:
                    raise ConfigurationError(f"Partition {partition} is closed already.")
                return share
        raise ConfigurationError(f"The layout has no partition {partition}.")

    def _new_ids(self, count: int) -> range:
        stop = self.next_id + count
        if stop > HIGHEST_PARTITION + 1:
            raise ConfigurationError(
                f"Ids of partitions go up to {HIGHEST_PARTITION} and are not used again: "
                f"{count} more do not fit above {self.next_id - 1}."
            )
        return range(self.next_id, stop)


def _heir_of(parent: int | None, family: list[Share], child: Share) -> int | None:
    """Return the heir of a closed parent that has the keys of a child."""
    if parent is None:
        return None
    return next(
        share.id
        for share in family
        if share.cursor_from[0] == parent and share.holds(child.remainder)
    )
