"""Which partitions of a feed are read, in which order, and which inherit cursors."""

from collections.abc import Collection

from zeroeventhub.consumer.steps import Inherit
from zeroeventhub.errors import ConfigurationError, ProtocolError
from zeroeventhub.protocol import FeedInfo, Partition


def choose(info: FeedInfo, partitions: Collection[int] | None) -> tuple[Partition, ...]:
    """Return the partitions of a feed to read: those that the caller configured, or all.

    Raises:
        ConfigurationError: the feed does not have a configured partition.
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
    """Refuse a partition whose parent never ends, because it is open or waits for its own child.

    FeedAPI v2, Method 1 to change partition count: a parent is closed. Each partition is checked
    only once, however many children it has: a publisher can list 32,768 in a chain.
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
    """Return the step that copies cursors to the partitions that inherit them; None without any."""
    heirs = {partition.id: partition.cursor_from for partition in info.partitions}
    heirs = {heir: parents for heir, parents in heirs.items() if parents}
    if not heirs:
        return None
    return Inherit(heirs, tuple(partition.id for partition in info.partitions))


def ready(chosen: Collection[Partition], drained: Collection[int]) -> list[Partition]:
    """Return the partitions that may be read now.

    A child starts when its parent has been read to the end (FeedAPI v2, Method 1 to change
    partition count); a parent that was not chosen delays no child.
    """
    waited_for = {partition.id for partition in chosen} - set(drained)
    return [
        partition
        for partition in chosen
        if partition.id not in drained and partition.starts_after not in waited_for
    ]
