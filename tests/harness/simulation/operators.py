"""Who operates the consumer: puts cursors elsewhere, for a reason or without any."""

from contextlib import suppress

from harness.simulation.calls import call_and_wait
from harness.simulation.feed import position_of
from zeroeventhub import FIRST
from zeroeventhub.errors import StoreUnavailable


class Operator:
    """Put cursors elsewhere; effects of events that will come again are emptied with it.

    Args:
        world: where it is done.
    """

    def __init__(self, world):
        self.world = world

    def reset(self):
        """Let the consumer start again everywhere."""
        yield from self._do(self._reset)

    def seek(self):
        """Put the cursors of all partitions before a moment."""
        moment = self.world.random.randint(0, self.world.feed.position)
        yield from self._do(
            self._put, lambda: {n: self._cursor_at(n, moment) for n in self.world.feed.partitions}
        )

    def set_back(self):
        """Put the cursor of one partition back, from which no other goes on."""
        partition = self.world.random.choice(list(self.world.feed.partitions))
        share = self.world.random.random()
        yield from self._do(self._put, lambda: self._back(partition, share))

    def mend(self):
        """Put those cursors elsewhere that the feed refuses."""
        yield from self._do(self._put, self._refused)

    def _is_changing(self):
        """Tell whether cursors of partitions that are gone were not handed on yet."""
        partitions, rows = self.world.feed.partitions, self.world.store.rows
        parents = {n for partition in partitions.values() for n in partition.cursor_from}
        return any(rows[number].cursor for number in parents & rows.keys())

    def _back(self, number, share):
        feed = self.world.feed
        partition, row = feed.partitions.get(number), self.world.store.rows.get(number)
        if partition is None or partition.closed or row is None or not row.cursor:
            return {}
        return {number: self._cursor_at(number, share * position_of(row.cursor))}

    def _refused(self):
        rows, refusal = self.world.store.rows, self.world.feed.refusal
        standing = {n: rows[n].cursor for n in self.world.feed.partitions if n in rows}
        return {
            number: self._cursor_at(number, position_of(cursor))
            for number, cursor in standing.items()
            if cursor and refusal(number, cursor)
        }

    def _cursor_at(self, partition, moment):
        """Find the last cursor that can be read from, up to a moment."""
        feed = self.world.feed
        found = [entry for entry in feed.behind(partition, FIRST) if entry.position <= moment]
        return str(found[-1].position) if found else feed.earliest(partition)

    def _do(self, action, *arguments):
        """Do it until it is done, for all that can be told."""
        while True:
            with suppress(StoreUnavailable):
                yield from call_and_wait(self.world, action, *arguments)
                return

    def _reset(self):
        yield from self.world.store.reset()
        self.world.expect_nothing_by_now()

    def _put(self, choose):
        """Set cursors that are chosen in the moment in which they are set."""
        store = self.world.store
        yield from store.until_all_free(store.rows)
        # Who still reads partitions that are gone would be fenced by no cursor of their heirs.
        cursors = {} if self._is_changing() else choose()
        again = self.world.feed.keys_in(cursors)
        if any(letter.entry.key in again for letter in store.letters):
            # What comes again must not come from the dead letters as well.
            yield from self._reset()
        else:
            yield from store.set(cursors)
            self.world.expect_nothing_by_now()
