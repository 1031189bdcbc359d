"""Which partitions of a feed are read, and in which order."""

from collections.abc import Collection

from zeroeventhub._follow.steps import Inherit
from zeroeventhub.errors import ConfigurationError, ProtocolError
from zeroeventhub.protocol import FeedInfo, Partition

__all__ = ["choose", "inheritance", "ready"]


def choose(info: FeedInfo, partitions: Collection[int] | None) -> tuple[Partition, ...]:
    """Name the partitions of a feed that are to be read.

    Args:
        info: what the feed says of itself.
        partitions: the ids that were asked for; None for all.

    Raises:
        ConfigurationError: a partition was asked for that the feed does not have.
        ProtocolError: a partition would never be read.
    """
    known = {partition.id: partition for partition in info.partitions}
    if unknown := set(partitions or ()) - known.keys():
        raise ConfigurationError(
            f"The feed has no partition {min(unknown)}; "
            f"it has {', '.join(map(str, sorted(known)))}."
        )
    _refuse_endless(info.partitions, known)
    return tuple(
        partition
        for partition in info.partitions
        if partitions is None or partition.id in partitions
    )


def _refuse_endless(partitions: Collection[Partition], known: dict[int, Partition]) -> None:
    """Refuse a partition that waits for one that never ends: it is open, or waits for the first.

    FeedAPI v2, Method 1 to change partition count: a parent is closed. Each partition is looked at
    once, however many wait for it: a publisher can name 32,768 in a chain.
    """
    checked: set[int] = set()
    for partition in partitions:
        line: set[int] = set()
        here = partition
        while here.id not in checked and here.starts_after is not None:
            line.add(here.id)
            parent = known.get(here.starts_after)
            if parent is None:
                break
            if parent.id in line or not parent.closed:
                raise ProtocolError(
                    f"Partition {partition.id} of the feed waits for partition {parent.id}, "
                    "which never ends."
                )
            here = parent
        checked |= line


def inheritance(info: FeedInfo) -> Inherit | None:
    """Make the step that hands cursors to partitions that go on from others, if there are any."""
    heirs = {partition.id: partition.cursor_from for partition in info.partitions}
    heirs = {heir: parents for heir, parents in heirs.items() if parents}
    if not heirs:
        return None
    return Inherit(heirs, tuple(partition.id for partition in info.partitions))


def ready(chosen: Collection[Partition], drained: Collection[int]) -> list[Partition]:
    """Name the partitions that may be read now.

    A child starts when its parent has been read to the end (FeedAPI v2, Method 1 to change
    partition count); a parent that nobody asked to read holds nobody up.
    """
    waited_for = {partition.id for partition in chosen} - set(drained)
    return [
        partition
        for partition in chosen
        if partition.id not in drained and partition.starts_after not in waited_for
    ]
