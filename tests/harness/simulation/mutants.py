"""Rules of the world taken away, one at a time: the simulation has to notice."""

from contextlib import contextmanager
from unittest.mock import patch

from harness.simulation.feed import Answer, Feed, position_of
from harness.simulation.store import Store
from harness.simulation.workers import Worker
from zeroeventhub import Page


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


def _no_keys(self):
    return set()


def _no_steps(self, *arguments):
    return iter(())


def _no_epoch_is_over(self, epoch):
    return False


def _hand_and_leave_the_end(self, row, cursor):
    row.cursor = cursor
    row.epoch += 1


RULES = {
    "compare of epochs": (Store, "stands_at", _same_cursor),
    "compare of cursors": (Store, "stands_at", _same_epoch),
    "epoch for who enters": (Store, "raise_epoch", _nothing),
    "check of the lease": (Store, "check_lease", _nothing),
    "end of a cut page": (Answer, "tail_dropped", _keep_all_lines),
    "look for the end of a page": (Answer, "cut", _take_for_whole),
    "horizon": (Feed, "behind", _skip_the_uncommitted),
    "check of the token": (Feed, "check", _nothing),
    "holding back behind a dead letter": (Store, "blocked", _no_keys),
    "look at the head for a cursor that was put elsewhere": (
        Worker,
        "is_overtaken",
        _no_epoch_is_over,
    ),
    "look at the parent when a child is entered": (Store, "check_parent", _nothing),
    "new end behind a cursor that was put back": (Store, "_hand", _hand_and_leave_the_end),
    "inheritance": (Store, "inherit", _no_steps),
}


@contextmanager
def without(rule):
    """Take a rule away, for the time of the block."""
    with patch.object(*RULES[rule]):
        yield
