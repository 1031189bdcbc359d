"""The consumer's database: cursors with locks and transactions, and leases by its own clock.

It does what the statements of `zeroeventhub.cursors` do; a statement that has its locks takes no
time, as nothing could be seen in between.
"""

from dataclasses import dataclass, field

from harness.simulation.clock import FOREVER

from zeroeventhub import FIRST
from zeroeventhub.consumer.steps import Claimed, Place
from zeroeventhub.consumer.store.leases import divide, fair_share
from zeroeventhub.errors import Fenced, LeaseLost, TokenChanged

HANDED_OVER = ""


@dataclass(slots=True, eq=False)
class Row:
    """Hold a partition's cursor as it was last committed, and the transaction that locks it."""

    cursor: str = FIRST
    epoch: int = 0
    ended: bool = False
    holder: "Transaction | None" = None
    queue: list = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Transaction:
    """Hold what was written and not yet committed."""

    partition: int
    place: Place
    cursor: str
    events: list = ()
    row: Row | None = None
    over: bool = False


class Store:
    """Be the database."""

    def __init__(self, clock, ledger):
        self.clock = clock
        self.ledger = ledger
        self.rows = {}
        self.leases = {}
        self.members = {}

    # Cursors: what `CursorStore` does.

    def load(self, partition):
        row = self.rows.setdefault(partition, Row())
        if row.cursor == HANDED_OVER:
            raise TokenChanged("Other partitions have taken over.")
        return Place(row.cursor, row.epoch)

    def enter(self, partition, owner, after=None):
        row = self.rows.get(partition) or Row()
        yield from self._until_free(row)
        if row.cursor == HANDED_OVER:
            raise TokenChanged("Other partitions have taken over.")
        holder, runs_out = self.leases.get(partition, (None, 0.0))
        if holder != owner or runs_out <= self.clock.now:
            raise LeaseLost("Another process reads the partition.")
        if after is not None and not (after in self.rows and self.rows[after].ended):
            raise LeaseLost("Another partition has to be read before.")
        self.rows[partition] = row
        row.epoch += 1
        self.ledger.entered(partition, owner, row.epoch, self.leases.get(partition))
        return Place(row.cursor, row.epoch)

    def move(self, transaction):
        """Lock the row and move its cursor, unless it does not stand where it should."""
        row = transaction.row = self.rows[transaction.partition]
        yield from self._until_free(row)
        row.holder = transaction
        if not self.stands_at(row, transaction.place):
            self.roll_back(transaction)
            raise Fenced("The cursor has moved.")

    def stands_at(self, row, place):
        return row.cursor == place.cursor and row.epoch == place.epoch

    def end(self, partition, place):
        row = self.rows[partition]
        yield from self._until_free(row)
        if not self.stands_at(row, place):
            raise Fenced("The cursor has moved.")
        row.ended = True
        self.ledger.ended(partition)

    def reset(self):
        yield from self._until_all_free(self.rows)
        for row in self.rows.values():
            if row.cursor != HANDED_OVER:
                self.hand(row, FIRST)
        self.ledger.started_over(self.rows)

    def commit(self, transaction):
        """Let a transaction's cursor and effects be, together."""
        if transaction.over:
            return
        row = transaction.row
        self.ledger.committed(transaction, row)
        row.ended = row.ended and row.cursor == transaction.cursor
        row.cursor = transaction.cursor
        self.roll_back(transaction)

    def roll_back(self, transaction):
        transaction.over = True
        row = transaction.row
        if row is not None and row.holder is transaction:
            row.holder = None
            for task in row.queue:
                self.clock.wake(task)
            row.queue.clear()

    def inherit(self, heirs, remaining):
        """Hand cursors of partitions that are gone to those that go on from there."""
        parents = {parent for of_heir in heirs.values() for parent in of_heir}
        yield from self._until_all_free(parents)
        for heir, of_heir in heirs.items():
            known = [self.rows[parent].cursor for parent in of_heir if parent in self.rows]
            for cursor in [cursor for cursor in known if cursor != HANDED_OVER][:1]:
                row = self.rows.setdefault(heir, Row(cursor))
                if row.cursor == HANDED_OVER:
                    self.hand(row, cursor)
        for parent in parents.intersection(self.rows).difference(remaining):
            if self.rows[parent].cursor != HANDED_OVER:
                self.hand(self.rows[parent], HANDED_OVER)

    def hand(self, row, cursor):
        """Put a cursor elsewhere, and fence all that have read from it."""
        row.cursor = cursor
        row.epoch += 1
        row.ended = False

    def _until_all_free(self, partitions):
        while busy := [n for n in partitions if n in self.rows and self.rows[n].holder]:
            yield from self._until_free(self.rows[busy[0]])

    def _until_free(self, row):
        while row.holder is not None:
            row.queue.append(self.clock.current)
            yield FOREVER

    # Leases: what `Leases` does.

    def claim(self, owner, wanted, seconds):
        """Renew the leases of a process, and take its share of the free ones."""
        now = self.clock.now
        self.members[owner] = now + seconds
        self.members = {name: end for name, end in self.members.items() if end > now}
        held = {number for number, lease in self.leases.items() if lease[0] == owner}
        elsewhere = {
            number: self.leases[number][1]
            for number in wanted
            if number not in held and self.leases.get(number, ("", 0.0))[1] > now
        }
        free = [number for number in wanted if number not in held and number not in elsewhere]
        most = fair_share(self.members, owner, len(wanted))
        taken, surplus = divide(held.intersection(wanted), free, most)
        held |= taken
        for number in held:
            self.leases[number] = (owner, now + seconds)
        return Claimed(
            frozenset(held),
            surplus=surplus,
            elsewhere=elsewhere,
            ended=frozenset(number for number, row in self.rows.items() if row.ended),
            epochs={number: self.rows[number].epoch for number in held & self.rows.keys()},
        )

    def release(self, owner, partitions):
        for number in partitions:
            if number in self.leases and self.leases[number][0] == owner:
                del self.leases[number]

    def leave(self, owner):
        self.release(owner, list(self.leases))
        self.members.pop(owner, None)
