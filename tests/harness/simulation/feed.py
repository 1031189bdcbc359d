"""A feed in memory: partitions, writers with a horizon, and layouts that change."""

from bisect import bisect_right
from dataclasses import dataclass, replace

from zeroeventhub import FIRST, FeedInfo, Page, Partition
from zeroeventhub.errors import CutPage, TokenChanged
from zeroeventhub.protocol import CAUGHT_UP


class Entry:
    """Hold one position of a partition: an event, or what filters leave out.

    Attributes:
        position: rises over the whole feed.
        key: the event's key; None where the position has no event.
        number: which event of its key it is, from 1 on; 0 until it is committed.
    """

    __slots__ = ("committed", "key", "number", "position")

    def __init__(self, position, key):
        self.position = position
        self.key = key
        self.number = 0
        self.committed = False

    def __repr__(self):
        """Name the event in traces."""
        return f"{self.key}{self.number}"


@dataclass(frozen=True)
class Answer:
    """Hold what the feed sends: a page, and where in it further checkpoints stand.

    Attributes:
        page: the whole page.
        checkpoint_every: behind how many events there is a checkpoint; 0 for the last one only.
    """

    page: Page
    checkpoint_every: int

    def cut(self, lines):
        """Return what a client makes of so many events of it."""
        kept = lines - lines % self.checkpoint_every if self.checkpoint_every else 0
        if not kept:
            raise CutPage("The page ended before its checkpoint.")
        return Page(self.tail_dropped(lines, kept), str(self.page.events[kept - 1].position))

    def tail_dropped(self, lines, kept):
        """The events in front of the last checkpoint that arrived."""
        return self.page.events[:kept]


class Feed:
    """Be a feed whose events are numbered by key, so that any loss, repetition and disorder shows.

    Attributes:
        partitions: those that there are, by id.
        token: the version of their layout.
        published: how many events of each key are committed.
        logs: by partition, its entries in the order of their positions.
    """

    def __init__(self, clock, random, *, partitions, keys, extensions, page_size, checkpoint_every):
        self.clock = clock
        self.random = random
        self.partitions = {number: Partition(number) for number in range(partitions)}
        self.extensions = extensions
        self.page_size = page_size
        self.checkpoint_every = checkpoint_every
        self.token = 0
        self.logs = {number: [] for number in self.partitions}
        self.owners = {key: index % partitions for index, key in enumerate(keys)}
        self.published = dict.fromkeys(keys, 0)
        self.writing = set()
        self.watchers = []
        self.position = 0

    # What writers do.

    def write(self, key):
        """Draw a position for an event of a key; it is seen when it is committed."""
        self.position += 1
        entry = Entry(self.position, key)
        self.logs[self.owners[key]].append(entry)
        self.writing.add(key)
        return entry

    def commit(self, entry):
        """Let an event be seen."""
        self.published[entry.key] += 1
        entry.number = self.published[entry.key]
        entry.committed = True
        self._written(entry)

    def roll_back(self, entry):
        """Let an event never have been."""
        self.logs[self.owners[entry.key]].remove(entry)
        self._written(entry)

    def _written(self, entry):
        self.writing.discard(entry.key)
        for task in self.watchers:
            self.clock.wake(task)
        self.watchers.clear()

    def skip(self, partition):
        """Take a position that holds nothing for this consumer."""
        self.position += 1
        entry = Entry(self.position, None)
        entry.committed = True
        self.logs[partition].append(entry)

    # What operators do.

    def idle_partitions(self):
        """The open partitions that nobody writes to just now."""
        busy = {self.owners[key] for key in self.writing}
        return [p.id for p in self.partitions.values() if not p.closed and p.id not in busy]

    def rotate(self):
        """Give the same layout a new token."""
        self.token += 1

    def close_and_split(self, parent):
        """Close a partition and let children start after it."""
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

    def _divide(self, parent):
        keys = [key for key, owner in self.owners.items() if owner == parent]
        self.token += 1
        for half in filter(None, (keys[::2], keys[1::2])):
            number = len(self.logs)
            self.logs[number] = []
            self.owners.update(dict.fromkeys(half, number))
            yield number, half

    def keys_in(self, partitions):
        """The keys that have events in some partitions."""
        return {entry.key for n in partitions for entry in self.logs[n]} - {None}

    def passed(self, key, cursors):
        """How many events of a key are before all cursors that have some of its events."""
        numbers = [0]
        for partition in self.partitions.values():
            standing = [cursors.get(n) for n in (partition.id, *partition.cursor_from)]
            cursor = next(filter(None, standing), FIRST)
            after = position_of(cursor)
            for entry in self.logs[partition.id]:
                if entry.key == key and entry.committed:
                    if entry.position > after:
                        return entry.number - 1
                    numbers.append(entry.number)
        return max(numbers)

    # What readers see.

    def info(self):
        """Describe the feed; the partition that came last comes first."""
        return FeedInfo(
            tuple(reversed(self.partitions.values())),
            str(self.token),
            extensions=self.extensions,
        )

    def check(self, token):
        """Refuse a token of another layout."""
        if token != str(self.token):
            raise TokenChanged("The partitions have changed.")

    def answer(self, token, partition, cursor):
        """Read what follows a cursor, up to the horizon."""
        self.check(token)
        entries = self.behind(partition, cursor)
        found = entries[: self.page_size]
        end = str(found[-1].position) if found else cursor
        caught_up = CAUGHT_UP in self.extensions and len(found) == len(entries)
        events = [entry for entry in found if entry.key is not None]
        return Answer(Page(events, end, caught_up=caught_up), self.checkpoint_every)

    def behind(self, partition, cursor):
        """The entries behind a cursor and below the horizon."""
        entries = self.logs[partition]
        after = position_of(cursor)
        start = bisect_right(entries, after, key=_position)
        for end in range(start, len(entries)):
            if not entries[end].committed:
                return entries[start:end]
        return entries[start:]

    def in_sight(self):
        """How many events of each key can be read now."""
        numbers = dict.fromkeys(self.published, 0)
        for partition in self.partitions:
            for entry in self.behind(partition, FIRST):
                if entry.key is not None:
                    numbers[entry.key] = max(numbers[entry.key], entry.number)
        return numbers

    def between(self, partition, old, new):
        """The events behind one cursor and not behind another."""
        start, end = position_of(old), position_of(new)
        entries = self.logs[partition]
        return [e for e in entries if start < e.position <= end and e.key is not None]


def position_of(cursor):
    """The position that a cursor stands for."""
    return 0 if cursor == FIRST else int(cursor)


def _position(entry):
    return entry.position
