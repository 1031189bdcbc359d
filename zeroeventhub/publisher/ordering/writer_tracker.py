"""How the ordering observed finds the horizon from the writers that are open.

A round is the last number drawn, with the writers that were open when it was read. Once all of
these have ended, everything up to the number is decided, whatever writers have started since.
"""

from dataclasses import dataclass
from functools import partial
from itertools import count
from threading import Lock

from zeroeventhub.errors import Unavailable
from zeroeventhub.publisher.ordering.port import Horizon

PREPARED = "-1/"
"""The prefix of a prepared transaction's name, which may differ from its writer's."""


@dataclass
class _Round:
    """A number that was drawn, and the moment after its writers were read."""

    number: int
    read_by: int


class WriterTracker:
    """Decide rounds by the writers that are still open; performs no I/O.

    Readers may observe concurrently: each calls `begin`, reads the last number drawn, with its
    origin, and then the open writers, in this order, and passes all of it to `horizon`.
    """

    def __init__(self) -> None:
        self._ticks = count(1)
        self.begin = partial(next, self._ticks)
        """Begins a reading, and returns the moment."""
        self._lock = Lock()
        self._origin: str | None = None
        self._origin_since = 0
        self._settled: _Round | None = None
        self._open: dict[frozenset[str], _Round] = {}

    def decided(self, origin: str, number: int) -> Horizon | None:
        """Return the horizon if an earlier round has decided the last number; else None."""
        with self._lock:
            settled = self._settled
            if settled is None or settled.number != number or origin != self._origin:
                return None
            for round_ in self._open.values():
                if round_.number > number:
                    return None  # the sequence was set back
        return Horizon(settled=number, highest=number)

    def horizon(
        self, began: int, origin: str, number: int, writers: frozenset[str], kept: int | None = None
    ) -> Horizon:
        """Decide open rounds by a new reading, open another, and return the horizon.

        A reading that began before a round was complete does not count for that round: a writer of
        the round may be missing from it because it had not started yet.

        Args:
            began: the moment at which the reading began.
            origin: what the numbers come from, by a unique name. If it changes, all rounds are
                forgotten: another server, or one that has restarted, may draw them again.
            number: the last number drawn.
            writers: the writers open after it was read, by names that the server never reuses.
            kept: the number up to which none is drawn again, if that is not the last one.

        Raises:
            Unavailable: no round has been decided yet, or another reader has found another origin
                since the reading began.
        """
        with self._lock:
            if origin != self._origin:
                if began < self._origin_since:
                    raise Unavailable("The database has moved to another server.", retry_after=1)
                self._origin, self._origin_since = origin, next(self._ticks)
                self._settled, self._open = None, {}
            self._decide(began, number, writers, number if kept is None else kept)
            if self._settled is None:
                raise Unavailable(
                    "The feed has just started and waits for open transactions to end before it "
                    "knows how far it may be read.",
                    retry_after=1,
                )
            settled = self._settled.number
        return Horizon(settled=settled, highest=max(number, settled))

    def _decide(self, began: int, number: int, writers: frozenset[str], kept: int) -> None:
        read_by = next(self._ticks)
        earlier = [*self._open.values(), *filter(None, [self._settled])]
        if any(began > round_.read_by and number < round_.number for round_ in earlier):
            # The sequence was set back, by TRUNCATE … RESTART IDENTITY or a restored backup.
            self._settled, self._open = None, {}
        prepared = {writer for writer in writers if writer.startswith(PREPARED)}
        judged: dict[frozenset[str], _Round] = {}
        for holders, round_ in [*self._open.items(), (writers, _Round(kept, read_by))]:
            left = holders & writers if began > round_.read_by else holders
            if any(not holder.startswith(PREPARED) for holder in holders - left):
                # A writer that is gone may have become any of the prepared transactions, under
                # another name. They were read just now, so the round must wait for a later reading.
                left |= prepared
                round_ = _Round(round_.number, read_by)  # noqa: PLW2901 - the same round, later
            if left not in judged or judged[left].number < round_.number:
                judged[left] = round_
        decided = judged.pop(frozenset(), None)
        if decided and (self._settled is None or decided.number > self._settled.number):
            self._settled = decided
        self._open = judged
