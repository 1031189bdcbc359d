"""How many events are read again or left out when a consumer's cursors are set."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass

from zeroeventhub.client import AsyncClient, Client
from zeroeventhub.consumer.lag import MOST, lag_at
from zeroeventhub.coroutines import maybe_await
from zeroeventhub.errors import BadCursor, Gone, printable
from zeroeventhub.protocol import FIRST, FeedInfo, Lag

TWICE = "effects that are there are applied a second time, unless `apply` replaces them."
"""What happens when events are read again, as the end of a sentence."""


@dataclass(frozen=True)
class Move:
    """A cursor that is to be set, and how many events are then read again or left out.

    The numbers are None if they are unknown, and lower bounds if they are not `exact`.
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
    """Count the events between a consumer's cursors and the cursors that are to be set.

    Args:
        client: reads the feed; with a Client this coroutine never suspends. None to count nothing.
        before: a consumer's cursors by partition.
        after: the cursors that are to be set.
    """
    if client is not None:
        # A copy: a running consumer may share the client, and must notice a new layout itself.
        client = copy(client)
        info = await maybe_await(client.discover())
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
            # The difference of two lower bounds says nothing.
            if lags[0].exact or further < 0:
                again = max(0, further)
            if lags[1].exact or further > 0:
                left_out = max(0, -further)
        moves.append(Move(number, old, cursor, again, left_out, exact))
    return moves


async def _two_lags(
    client: Client | AsyncClient, info: FeedInfo, number: int, old: str, cursor: str
) -> tuple[Lag, Lag] | None:
    """Return how many events follow two cursors; None if the feed no longer knows the first."""
    if old == cursor:
        return Lag(0, 0.0), Lag(0, 0.0)
    try:
        before = await lag_at(client, info, number, old, MOST)
    except (Gone, BadCursor):
        return None
    return before, await lag_at(client, info, number, cursor, MOST)


def consequence(moves: list[Move], repeated: str, unknown: str) -> str:
    """Return sentences that say how many events moves repeat or leave out.

    Args:
        moves: the moves.
        repeated: what happens where events are read again, as the end of a sentence.
        unknown: the end of the sentence which says that the numbers are unknown.
    """
    if any(move.again is None or move.left_out is None for move in moves):
        return (
            f"It is unknown how many events are read again or left out{unknown}. Where events are "
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
