"""Divide partitions fairly between the processes of a consumer."""

from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["Division", "divide", "share"]


@dataclass(frozen=True)
class Division:
    """Hold what becomes of the partitions that a process holds or may take.

    Attributes:
        taken: free partitions that it takes.
        surplus: partitions that it holds and that belong to others.
    """

    taken: frozenset[int]
    surplus: frozenset[int]


def share(members: Collection[str], owner: str, partitions: int) -> int:
    """Return how many partitions belong to a member: as many as to any other, or one more.

    Args:
        members: all members, of whom the first in order get what cannot be divided.
        owner: one of them.
        partitions: how many partitions there are.
    """
    each, left = divmod(partitions, len(members))
    return each + (sorted(members).index(owner) < left)


def divide(held: Collection[int], free: Collection[int], most: int) -> Division:
    """Keep what is held and take what is free, up to a number of partitions.

    The lowest come first, so that a claim that is repeated finds the same surplus.

    Args:
        held: the partitions that the process holds.
        free: those that nobody holds.
        most: how many belong to it.
    """
    taken = sorted(free)[: max(0, most - len(held))]
    return Division(frozenset(taken), frozenset(sorted(held)[most:]))
