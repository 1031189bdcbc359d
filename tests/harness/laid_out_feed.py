"""A feed whose partitions are those of a layout, which may be another at any time.

Positions rise over the whole feed; an event keeps the partition that it was written to, and the
layout says where it is shown.
"""

from zeroeventhub import FIRST, LAST, Event, FeedInfo, Page
from zeroeventhub.errors import TokenChanged
from zeroeventhub.extensions import CAUGHT_UP
from zeroeventhub.partitions import Layout, key_hash
from zeroeventhub.protocol import CountedCursor

KEYS = range(6)


class ReadFeed:
    """Be a feed whose partitions are those of a layout, with the extensions that it was given."""

    heeds_limits = True

    def __init__(self, partitions, extensions):
        self.layout = Layout.of(partitions)
        self.extensions = extensions
        self.rows = []

    def append(self, key):
        """Publish an event of a key; its number is its position."""
        self.rows.append((key, self.layout.partition_of(key)))

    def published(self, key):
        return [number for number, (of, _) in enumerate(self.rows, 1) if of == key]

    def shown(self, partition, after=0):
        """The events of a partition behind a position: number and key."""
        return [
            (number, key)
            for number, (key, written) in enumerate(self.rows, 1)
            for share in self.layout.heirs(written)
            if number > after and share.id == partition and share.holds(key_hash(key))
        ]

    def info(self):
        """Describe the feed; the partition that came last comes first."""
        info = self.layout.info()
        return FeedInfo(info.partitions[::-1], info.token, extensions=self.extensions)

    def read(self, partition, cursor, limit, *, stop=None):
        if cursor == LAST:
            return Page([], str(len(self.rows)), caught_up=CAUGHT_UP in self.extensions)
        after = 0 if cursor == FIRST else int(cursor)
        if stop is not None and int(stop) <= after:
            return Page([], str(after), stop_reached=True)
        until = len(self.rows) if stop is None else int(stop)
        ahead = self.shown(partition, after)
        wanted = [(number, key) for number, key in ahead if number <= until]
        most = min(limit, 4) if self.heeds_limits else 4
        taken = wanted[:most]
        events = [Event.of({"key": key, "n": number}) for number, key in taken]
        stopped = stop is not None and taken == wanted
        # A page that is not full ends at the head of all partitions.
        end = until if stopped or len(taken) < most else taken[-1][0]
        caught_up = CAUGHT_UP in self.extensions and len(taken) == len(ahead)
        return Page(events, str(end), caught_up=caught_up, stop_reached=stopped)

    def cursor_of_count(self, partition, cursor, events, *, stop=None):
        """Find the place so many events behind a cursor."""
        after = 0 if cursor == FIRST else int(cursor)
        until = len(self.rows) if stop is None else int(stop)
        ahead = [number for number, _ in self.shown(partition, after) if number <= until]
        found = ahead[:events]
        return CountedCursor(str(found[-1] if found else after), len(found))


class ChangingFeed(ReadFeed):
    """A feed that refuses requests for partitions that it no longer has, and divides the others."""

    def read(self, partition, cursor, limit, *, stop=None):
        self.expect(partition)
        return super().read(partition, cursor, limit, stop=stop)

    def cursor_of_count(self, partition, cursor, events, *, stop=None):
        self.expect(partition)
        return super().cursor_of_count(partition, cursor, events, stop=stop)

    def splits(self, partition, count, *, start=FIRST, stop=None):
        self.expect(partition)
        after = 0 if start == FIRST else int(start)
        until = len(self.rows) if stop is None else int(stop)
        ahead = [number for number, _ in self.shown(partition, after) if number <= until]
        places = ahead[:: -(-len(ahead) // count) or 1][1:]
        return [*map(str, (after, *(place - 1 for place in places), until))]

    def expect(self, partition):
        """Refuse a partition that is no longer there."""
        if all(one.id != partition for one in self.layout.partitions):
            raise TokenChanged("The partitions have changed.")
