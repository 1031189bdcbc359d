"""What was applied, and what must hold of it at every moment."""

from harness.simulation.clock import Violation


class Ledger:
    """Be the effects of the consumer, and check each as it is committed.

    Attributes:
        feed: the truth.
        applied: how many events of each key were applied.
        total: how many events were applied.
        aside: how many events of each key have been set aside behind them.
    """

    def __init__(self, feed):
        self.feed = feed
        self.applied = dict.fromkeys(feed.published, 0)
        self.total = 0
        self.aside = dict.fromkeys(feed.published, 0)
        self._epochs = {}
        self._entered = {}
        self._begun = set()

    def committed(self, transaction, row):
        """Apply the events of a page whose transaction is committed."""
        partition, events = transaction.partition, transaction.events
        self._check_epoch(partition, transaction.place.epoch)
        self._check_parent(partition)
        aside = [letter.entry for letter in transaction.aside]
        passed = sorted([*events, *aside], key=lambda entry: entry.position)
        if passed != self.feed.between(partition, row.cursor, transaction.cursor):
            raise Violation(
                f"The cursor of partition {partition} went from {row.cursor} to "
                f"{transaction.cursor}, {events} were applied and {aside} set aside."
            )
        for letter in transaction.settled:
            self.aside[letter.entry.key] -= 1
            self._apply(letter.entry, behind=0)
        for entry in events:
            self._apply(entry, behind=self.aside[entry.key])
        for entry in aside:
            self.aside[entry.key] += 1

    def started_over(self, rows, partitions):
        """Forget what will come again, as an operator does who has put cursors elsewhere."""
        self._begun.clear()
        self._epochs.update({number: rows[number].epoch for number in partitions})
        cursors = {number: row.cursor for number, row in rows.items()}
        for key in self.feed.keys_in(partitions):
            self.applied[key] = self.feed.passed(key, cursors)
            self.aside[key] = 0

    def _apply(self, entry, *, behind):
        if behind or entry.number != self.applied[entry.key] + 1:
            raise Violation(
                f"Event {entry} was applied behind {entry.key}{self.applied[entry.key]}, with "
                f"{behind} set aside before it."
            )
        self.applied[entry.key] += 1
        self.total += 1

    def _check_epoch(self, partition, epoch):
        if epoch < self._epochs.get(partition, 0):
            raise Violation(f"Partition {partition} got a commit of epoch {epoch}, which is over.")

    def _check_parent(self, partition):
        if partition in self._begun:
            return
        self._begun.add(partition)
        known = self.feed.partitions.get(partition)
        if known is not None and known.starts_after is not None:
            self.ended(known.starts_after, None)

    def entered(self, partition, owner, epoch, lease):
        """See that who enters holds the lease, and that an epoch belongs to one process."""
        if lease is None or lease[0] != owner:
            raise Violation(f"{owner} entered partition {partition}, which is leased to {lease}.")
        self._epochs[partition] = epoch
        if self._entered.setdefault((partition, epoch), owner) != owner:
            raise Violation(f"Two processes share epoch {epoch} of partition {partition}.")

    def ended(self, partition, cursor):
        """See that all events of a closed partition were applied or set aside."""
        for entry in self.feed.logs[partition]:
            if entry.key is not None and entry.number > self.decided(entry.key):
                raise Violation(f"Partition {partition} was not read to its end: {entry} is left.")

    def decided(self, key):
        """How many events of a key were applied or set aside."""
        return self.applied[key] + self.aside[key]

    def check_all_of(self, published):
        """See that all events were applied that were published at some time."""
        for key, number in published.items():
            if self.decided(key) < number:
                raise Violation(f"A run to the head has ended in front of {key}{number}.")

    @property
    def complete(self):
        """Whether everything that was published has been applied."""
        return self.applied == self.feed.published
