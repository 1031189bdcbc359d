"""How many writers of which sort there are."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mix:
    """Count the writers of a round.

    Attributes:
        hurting: threads that take a kind at random for every transaction.
        fast: threads that write one-row transactions as fast as they can.
        bulk: threads that write a thousand events a transaction.
        rest: seconds at most that a writer rests behind a transaction or a burst of them, so that
            there are moments with nobody else to wait for.
    """

    hurting: int = 10
    fast: int = 16
    bulk: int = 0
    rest: float = 0.1

    def share(self, index: int, count: int) -> "Mix":
        """Return one of several equal parts."""
        return Mix(
            len(range(index, self.hurting, count)),
            len(range(index, self.fast, count)),
            len(range(index, self.bulk, count)),
            self.rest,
        )


MIXES = {"postgresql": Mix(), "mariadb": Mix(), "sqlite": Mix(hurting=6, fast=4)}
"""The writers that each database bears: those of SQLite stand in one queue."""

LIGHT = Mix(hurting=4, fast=16, rest=0.02)
"""The writers that mutants are caught by: fast ones, and few that hold everybody back."""
