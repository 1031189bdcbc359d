"""Who reads a feed, what of it, and how much at once."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import HIGHEST_PARTITION, NOTHING, TypeFilter

__all__ = ["EVERYBODY", "Principal", "Quota"]

_LONGEST_NAME = 256


@dataclass(frozen=True, kw_only=True)
class Quota:
    """Bound what one reader takes of one feed, in each process; None bounds nothing.

    Attributes:
        in_flight: how many of its requests may be under way at once; a stream is one for as long
            as it is open.
        waiters: how many of these may wait at the head.
        rate: how many requests a second it may make in the long run.
        burst: how many it may make at once where it made none before; as many as in a second,
            where only the rate is said.
    """

    in_flight: int | None = None
    waiters: int | None = None
    rate: float | None = None
    burst: int | None = None

    def __post_init__(self) -> None:
        """Refuse bounds that nothing could keep.

        Raises:
            ConfigurationError: a bound is no number above zero, or a burst has no rate.
        """
        for name in ("in_flight", "waiters", "burst"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigurationError(f"Quota.{name} has to be a whole number above zero.")
        if self.rate is None:
            if self.burst is not None:
                raise ConfigurationError("A Quota with a burst needs a rate as well.")
        elif type(self.rate) not in {int, float} or not 0 < self.rate < math.inf:
            raise ConfigurationError("Quota.rate has to be a number above zero.")
        elif self.burst is None:
            object.__setattr__(self, "burst", max(1, math.ceil(self.rate)))


@dataclass(frozen=True, kw_only=True)
class Principal:
    """Name a reader, and say what it may see.

    Attributes:
        name: who it is, in logs and metrics and for its quota; empty for readers who are not told
            apart.
        partitions: those that it may read; None for all, and none at all for an empty collection.
        types: the types of events that it may see, by name, or a TypeFilter, which may leave out
            some; None for all. Events without a type are seen by those who see all and by those
            who leave out some.
        quota: how much it may take; None for the quota of the feed's routes.
    """

    name: str
    partitions: Collection[int] | None = None
    types: Collection[str] | TypeFilter | None = None
    quota: Quota | None = None

    def __post_init__(self) -> None:
        """Keep collections as sets; refuse what would not mean what it says.

        Raises:
            ConfigurationError: the name is not one line of text, a partition is no number that a
                partition may have, a type is none that can be filtered by, or the quota is none.
        """
        _refuse_name(self.name)
        object.__setattr__(self, "partitions", _partitions(self.partitions))
        object.__setattr__(self, "types", _types(self.types))
        if self.quota is not None and not isinstance(self.quota, Quota):
            raise ConfigurationError("The quota of a Principal is a Quota.")

    @property
    def is_restricted(self) -> bool:
        """Tell whether there may be anything in the feed that it may not see."""
        return self.partitions is not None or self.types is not None

    @property
    def is_restricted_to_types(self) -> bool:
        """Tell whether there are types of events that it may not see."""
        return self.types is not None

    def may_read(self, partition: int) -> bool:
        """Tell whether it may read a partition."""
        return self.partitions is None or partition in self.partitions

    def narrowed(self, types: TypeFilter | None) -> TypeFilter | None:
        """Return the filter of what it may see of what a request asks for; None for all."""
        own = cast("TypeFilter | None", self.types)
        if own is None:
            return types
        return own if types is None else own.joined(types)


def _refuse_name(name: object) -> None:
    if not isinstance(name, str) or len(name) > _LONGEST_NAME or not name.isprintable():
        raise ConfigurationError(
            f"The name of a Principal is one line of text of at most {_LONGEST_NAME} characters."
        )


def _partitions(partitions: object) -> frozenset[int] | None:
    if partitions is None:
        return None
    if not isinstance(partitions, Collection) or not all(
        type(number) is int and 0 <= number <= HIGHEST_PARTITION for number in partitions
    ):
        raise ConfigurationError(
            f"The partitions of a Principal are a collection of whole numbers from 0 to "
            f"{HIGHEST_PARTITION}, or None for all."
        )
    return frozenset(partitions)


def _types(types: object) -> TypeFilter | None:
    if types is None or isinstance(types, TypeFilter):
        return types
    # A string is a collection of its letters.
    if isinstance(types, str) or not isinstance(types, Collection) or not _are_text(types):
        raise ConfigurationError(
            "The types of a Principal are a collection of names, a TypeFilter, or None for all."
        )
    return TypeFilter(frozenset(types)) if types else NOTHING


def _are_text(names: Collection[object]) -> bool:
    return all(isinstance(name, str) for name in names)


EVERYBODY = Principal(name="")
"""Whoever asks, where nobody is told apart."""
