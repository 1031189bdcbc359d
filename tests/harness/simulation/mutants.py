"""Bugs to plant: each takes one rule away, and the simulation has to notice."""

from contextlib import contextmanager
from unittest.mock import patch

from harness.simulation.calls import HandlerFailed
from harness.simulation.feed import Answer, Feed, position_of
from harness.simulation.store import Store
from harness.simulation.workers import Worker
from zeroeventhub import Page
from zeroeventhub._follow import Follower, Load, Pause, Place, follower, roster
from zeroeventhub._follow.layout_order import ready
from zeroeventhub._follow.partition_follower import _Reading
from zeroeventhub._follow.roster import Roster
from zeroeventhub.errors import Fenced, StoreUnavailable


def _same_cursor(self, row, place):
    return row.cursor == place.cursor


def _same_epoch(self, row, place):
    return row.epoch == place.epoch


def _keep_all_lines(self, lines, kept):
    return self.page.events[:lines]


def _take_for_whole(self, lines):
    return Page(self.page.events[:lines], self.page.cursor)


def _skip_the_uncommitted(self, partition, cursor):
    after = position_of(cursor)
    return [e for e in self.logs[partition] if e.committed and e.position > after]


def _nothing(self, *arguments):
    pass


def _all_undrained(chosen, drained):
    return [partition for partition in chosen if partition.id not in drained]


def _deliver_blindly(self, page):
    """Deliver a page again behind a commit of unknown outcome, wherever the cursor is."""
    while True:
        try:
            yield self.delivery(page, set_aside=False)
        except (Fenced, StoreUnavailable) as error:
            yield from self.find_out(error)
        except HandlerFailed:
            yield Pause(0.1)
        else:
            self.place = Place(page.cursor, self.place.epoch)
            return


def _end_where_the_lease_is_not_free(self):
    elsewhere = self.claimed.elsewhere.keys()
    return {partition.id for partition in self.chosen} <= self.done | elsewhere


def _wanted_for_events_only(self):
    return tuple(partition.id for partition in ready(self.chosen, self.done))


def _no_keys(self):
    return set()


def _no_steps(self, *arguments):
    return iter(())


@contextmanager
def _both(one, other):
    with one, other:
        yield


def _nothing_to_refuse(self, partition, cursor):
    return None


def _no_epoch_is_over(self, epoch):
    return False


def _believe_what_was_drained(self, claimed):
    self.claimed = claimed
    for partition, runs_out in claimed.elsewhere.items():
        self.first_seen.setdefault(partition, runs_out)


def _load_and_believe(self, partition, among, epochs):
    return self._persist(Load(partition.id, among))


def _hand_and_leave_the_end(self, row, cursor):
    row.cursor = cursor
    row.epoch += 1


MUTANTS = {
    "no compare of epochs": lambda: patch.object(Store, "stands_at", _same_cursor),
    "no compare of cursors": lambda: patch.object(Store, "stands_at", _same_epoch),
    "no epoch for who enters": lambda: patch.object(Store, "raise_epoch", _nothing),
    "no check of the lease": lambda: patch.object(Store, "check_lease", _nothing),
    "no end of a cut page": lambda: patch.object(Answer, "tail_dropped", _keep_all_lines),
    "no look for the end of a page": lambda: patch.object(Answer, "cut", _take_for_whole),
    "no horizon": lambda: patch.object(Feed, "behind", _skip_the_uncommitted),
    "no check of the token": lambda: patch.object(Feed, "check", _nothing),
    # The store refuses it as well: either rule alone is enough.
    "no waiting for a parent": lambda: _both(
        patch.object(roster, "ready", _all_undrained), patch.object(Store, "check_parent", _nothing)
    ),
    "no waiting for a parent in turn": lambda: patch.object(follower, "ready", _all_undrained),
    "no look at the cursor before a page is tried again": lambda: patch.object(
        _Reading, "deliver", _deliver_blindly
    ),
    "no waiting for the lease of the dead": lambda: patch.object(
        Roster, "finished", property(_end_where_the_lease_is_not_free)
    ),
    "no holding back behind a dead letter": lambda: patch.object(Store, "blocked", _no_keys),
    "no look for dead letters": lambda: patch.object(_Reading, "redeliver", _no_steps),
    "no look at partitions that have ended": lambda: patch.object(
        Roster, "wanted", property(_wanted_for_events_only)
    ),
    "no refusal of a cursor whose events are gone": lambda: patch.object(
        Feed, "refusal", _nothing_to_refuse
    ),
    "no look at the head for a cursor that was put elsewhere": lambda: patch.object(
        Worker, "is_overtaken", _no_epoch_is_over
    ),
    "no look at the parent when a child is entered": lambda: patch.object(
        Store, "check_parent", _nothing
    ),
    "no doubt that what was drained still is": lambda: patch.object(
        Roster, "take_note", _believe_what_was_drained
    ),
    "no doubt of it in turn": lambda: patch.object(Follower, "_load", _load_and_believe),
    "no new end behind a cursor that was put back": lambda: patch.object(
        Store, "_hand", _hand_and_leave_the_end
    ),
    "no inheritance": lambda: patch.object(Store, "inherit", _no_steps),
}
