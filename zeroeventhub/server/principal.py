"""Who reads a feed, and what of it."""

from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["EVERYBODY", "Principal"]


@dataclass(frozen=True, kw_only=True)
class Principal:
    """Name a reader, and say what it may see.

    Attributes:
        name: who it is, in logs and for its quota.
        partitions: those that it may read; None for all.
    """

    name: str
    partitions: Collection[int] | None = None


EVERYBODY = Principal(name="")
"""Whoever asks, where nobody is told apart."""
