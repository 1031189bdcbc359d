"""A feed in memory whose layout changes, and a ledger that checks what was applied of it."""

from bisect import bisect_right
from dataclasses import dataclass, replace

from harness.simulation.clock import Violation

from zeroeventhub import FIRST, FeedInfo, Page, Partition
from zeroeventhub.errors import TokenChanged
from zeroeventhub.extensions import CAUGHT_UP


@dataclass(frozen=True, slots=True)
class Entry:
    """Hold one position of a partition: an event, or what filters leave out."""

    position: int
    key: str | None
    number: int = 0


class Feed:
    """Be a feed whose events are numbered by key, so that loss, repetition and disorder show."""

    def __init__(self, clock, *, partitions, keys, extensions, page_size):
        self.clock = clock
        self.partitions = {number: Partition(number) for number in range(partitions)}
        self.extensions = extensions
        self.page_size = page_size
        self.token = 0
        self.logs = {number: [] for number in self.partitions}
        self.owners = {key: index % partitions for index, key in enumerate(keys)}
        self.published = dict.fromkeys(keys, 0)
        self.watchers = []
        self.position = 0

    def publish(self, key, *, filtered=False):
        """Publish an event of a key, or take a position that holds nothing for this consumer."""
        self.position += 1
        self.published[key] += not filtered
        entry = Entry(self.position, None if filtered else key, self.published[key])
        self.logs[self.owners[key]].append(entry)
        for task in self.watchers:
            self.clock.wake(task)
        self.watchers.clear()

    def close_and_split(self, parent):
        self.partitions[parent] = replace(self.partitions[parent], closed=True)
        for child, _ in self._divide(parent):
            self.partitions[child] = Partition(child, starts_after=parent)

    def replace(self, parent):
        """Replace a partition by others that its cursors are valid in."""
        gone = self.partitions.pop(parent)
        ancestors = (parent, *gone.cursor_from)
        for heir, keys in self._divide(parent):
            self.partitions[heir] = replace(gone, id=heir, cursor_from=ancestors)
            self.logs[heir] = [entry for entry in self.logs[parent] if entry.key in keys]

    def drop(self, partition):
        """Show a closed partition no more; its children start after the one that it followed."""
        gone = self.partitions.pop(partition)
        self.token += 1
        for child in self.partitions.values():
            if child.starts_after == partition:
                self.partitions[child.id] = replace(child, starts_after=gone.starts_after)

    def _divide(self, parent):
        keys = [key for key, owner in self.owners.items() if owner == parent]
        self.token += 1
        for half in filter(None, (keys[::2], keys[1::2])):
            number = len(self.logs)
            self.logs[number] = []
            self.owners.update(dict.fromkeys(half, number))
            yield number, half

    def info(self):
        """Describe the feed; the partition that came last comes first."""
        partitions = tuple(reversed(self.partitions.values()))
        return FeedInfo(partitions, str(self.token), extensions=self.extensions)

    def check(self, token):
        if token != str(self.token):
            raise TokenChanged("The partitions have changed.")

    def answer(self, token, partition, cursor):
        self.check(token)
        entries = self.behind(partition, cursor)
        found = entries[: self.page_size]
        end = str(found[-1].position) if found else cursor
        caught_up = CAUGHT_UP in self.extensions and len(found) == len(entries)
        return Page([one for one in found if one.key is not None], end, caught_up=caught_up)

    def behind(self, partition, cursor):
        entries = self.logs[partition]
        return entries[bisect_right(entries, position_of(cursor), key=_position) :]


def position_of(cursor):
    """The position that a cursor stands for."""
    return 0 if cursor == FIRST else int(cursor)


def _position(entry):
    return entry.position


class Ledger:
    """Be the effects of the consumer, and check each as it is committed."""

    def __init__(self, feed):
        self.feed = feed
        self.applied = dict.fromkeys(feed.published, 0)
        self.total = 0
        self._epochs = {}
        self._entered = {}
        self._begun = set()

    def committed(self, transaction, row):
        partition, events = transaction.partition, transaction.events
        epoch = transaction.place.epoch
        if epoch < self._epochs.get(partition, 0):
            raise Violation(f"Partition {partition} got a commit of epoch {epoch}, which is over.")
        self._check_parent(partition)
        end = position_of(transaction.cursor)
        passed = [one for one in self.feed.behind(partition, row.cursor) if one.position <= end]
        if events != [one for one in passed if one.key is not None]:
            raise Violation(
                f"The cursor of partition {partition} went from {row.cursor} to "
                f"{transaction.cursor}, and {events} were applied."
            )
        for entry in events:
            if entry.number != self.applied[entry.key] + 1:
                raise Violation(f"{entry} was applied behind {self.applied[entry.key]}.")
            self.applied[entry.key] += 1
            self.total += 1

    def started_over(self, rows):
        """Forget everything, as an operator does who has put all cursors to the start."""
        self._begun.clear()
        self._epochs.update({number: row.epoch for number, row in rows.items()})
        self.applied = dict.fromkeys(self.applied, 0)

    def _check_parent(self, partition):
        known = self.feed.partitions.get(partition)
        if partition not in self._begun and known is not None and known.starts_after is not None:
            self.ended(known.starts_after)
        self._begun.add(partition)

    def entered(self, partition, owner, epoch, lease):
        """See that a process that enters holds the lease, and that an epoch belongs to it alone."""
        if lease is None or lease[0] != owner:
            raise Violation(f"{owner} entered partition {partition}, which is leased to {lease}.")
        self._epochs[partition] = epoch
        if self._entered.setdefault((partition, epoch), owner) != owner:
            raise Violation(f"Two processes share epoch {epoch} of partition {partition}.")

    def ended(self, partition):
        for entry in self.feed.logs[partition]:
            if entry.key is not None and entry.number > self.applied[entry.key]:
                raise Violation(f"Partition {partition} was not read to its end: {entry} is left.")

    def check_all_of(self, published):
        for key, number in published.items():
            if self.applied[key] < number:
                raise Violation(f"A run to the head has ended in front of {key}{number}.")

    @property
    def complete(self):
        return self.applied == self.feed.published
