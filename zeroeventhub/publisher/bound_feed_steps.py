"""Steps of a bound feed's methods: written once, carried out by a sync or an async engine."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Query:
    """Call a function with a connection of the feed's engine."""

    call: Callable[[Connection], Any]


@dataclass(frozen=True)
class Work:
    """Call a function that takes a while and needs no connection."""

    call: Callable[[], Any]


@dataclass(frozen=True)
class Pause:
    """Wait for some seconds."""

    seconds: float


Step: TypeAlias = Query | Work | Pause

Steps: TypeAlias = Generator[Step, Any, _Answer]
"""Decisions: each step is yielded, its result is sent back, and its error is raised there."""
