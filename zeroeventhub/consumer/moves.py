"""What it does to a consumer's effects to set its cursors, in numbers."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass

from zeroeventhub.client import AsyncClient, Client
from zeroeventhub.consumer.lag import MOST, lag_at
from zeroeventhub.coroutines import settled
from zeroeventhub.errors import BadCursor, Gone, printable
from zeroeventhub.protocol import FIRST, FeedInfo, Lag

TWICE = "effects that are there are applied a second time, unless `apply` replaces them."
"""What events that are read again do."""


@dataclass(frozen=True)
class Move:
    """A cursor that is to be set, and how many events that repeats or leaves out.

    The numbers are None if nobody knows them, and the least if they are not `exact`.
    """

    partition: int
    before: str | None
    cursor: str
    again: int | None
    left_out: int | None
    exact: bool

    def __str__(self) -> str:
        """Show the two cursors, and how many events are between them."""
        before = "none" if self.before is None else self.before
        line = f"partition {self.partition}: {printable(before)} -> {printable(self.cursor)}"
        most = "" if self.exact else "+"
        if self.again:
            line += f"; read again: {self.again:,}{most}"
        if self.left_out:
            line += f"; left out: {self.left_out:,}{most}"
        return line


async def find_moves(
    client: Client | AsyncClient | None, before: Mapping[int, str], after: Mapping[int, str]
) -> list[Move]:
    """Let the feed count what is between the cursors of before and after.

    Args:
        client: reads the feed; with a Client this coroutine never suspends. None if nobody counts.
        before: a consumer's cursors by partition.
        after: the cursors that are to be set.
    """
    if client is not None:
        # A copy: a running consumer may share the client, and must notice a new layout itself.
        client = copy(client)
        info = await settled(client.discover())
    moves = []
    for number, cursor in sorted(after.items()):
        old = before.get(number)
        lags = None
        if client is not None:
            lags = await _two_lags(client, info, number, old or FIRST, cursor)
        again = left_out = None
        exact = lags is not None and lags[0].exact and lags[1].exact
        if lags is not None:
            further = lags[1].events - lags[0].events
            # Of two numbers that are the least, the difference says nothing.
            if lags[0].exact or further < 0:
                again = max(0, further)
            if lags[1].exact or further > 0:
                left_out = max(0, -further)
        moves.append(Move(number, old, cursor, again, left_out, exact))
    return moves


async def _two_lags(
    client: Client | AsyncClient, info: FeedInfo, number: int, old: str, cursor: str
) -> tuple[Lag, Lag] | None:
    """Return how many events follow two cursors; None if the feed knows the first no longer."""
    if old == cursor:
        return Lag(0, 0.0), Lag(0, 0.0)
    try:
        before = await lag_at(client, info, number, old, MOST)
    except (Gone, BadCursor):
        return None
    return before, await lag_at(client, info, number, cursor, MOST)


def consequence(moves: list[Move], repeated: str, unknown: str) -> str:
    """Say what moves do to effects that are there, in sentences with numbers.

    Args:
        moves: the moves.
        repeated: what happens where events are read again, as the end of a sentence.
        unknown: why nobody knows the numbers, or how they are found.
    """
    if any(move.again is None or move.left_out is None for move in moves):
        return (
            f"How many events that repeats or leaves out is unknown{unknown}. Where events are "
            f"read again, {repeated}"
        )
    again, left_out = (sum(getattr(one, name) for one in moves) for name in ("again", "left_out"))
    exact = all(move.exact for move in moves)
    about = "About" if exact else "At least"
    sentences = []
    if again:
        sentences.append(f"{about} {again:,} events are read again: {repeated}")
    if left_out:
        sentences.append(f"{about} {left_out:,} events are left out, and never take effect.")
    return " ".join(sentences) or "No event is read again or left out."
