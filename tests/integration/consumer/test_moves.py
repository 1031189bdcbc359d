"""What it does to set a consumer's cursors, in numbers."""

import pytest
from harness.readers import mounted
from harness.shop import fill, orders

from zeroeventhub import FIRST, LAST, Client, ConnectionPool, TableFeed
from zeroeventhub.consumer.moves import consequence, find_moves
from zeroeventhub.coroutines import blocking


@pytest.mark.parametrize(
    ("before", "after", "numbers", "text"),
    [
        (7, 2, (5, 0), "About 5 events are read again: twice."),
        (2, 7, (0, 5), "About 5 events are left out, and never take effect."),
        (4, 4, (0, 0), "No event is read again or left out."),
        (None, 3, (0, 3), "About 3 events are left out, and never take effect."),
    ],
)
def test_events_between_cursors_are_counted(sqlite, before, after, numbers, text):
    """A move says how many events it repeats or leaves out."""
    with mounted(TableFeed(orders, data="data"), fill(sqlite)) as url, ConnectionPool() as pool:
        client = Client(url, pool)
        at = {None: None, 0: FIRST, 10: LAST}
        for count in {before, after} - {None}:
            at[count] = client.fetch(0, FIRST, limit=count).cursor
        known = {} if before is None else {0: at[before]}
        (move,) = moves = blocking(find_moves(client, known, {0: at[after]}))
        assert (move.again, move.left_out, move.exact) == (*numbers, True)
        assert consequence(moves, "twice.", "") == text


def test_nobody_counts_without_a_feed():
    """Without a feed the numbers are unknown, and the text says so."""
    moves = blocking(find_moves(None, {0: "1-3"}, {0: FIRST}))
    assert [(move.again, move.left_out) for move in moves] == [(None, None)]
    assert consequence(moves, "twice.", ", alas").startswith(
        "It is unknown how many events are read again or left out, alas. Where"
    )
    assert str(moves[0]) == "partition 0: 1-3 -> _first"
