"""The port of the strategies: what a feed asks of an ordering."""

from dataclasses import dataclass
from typing import Protocol

from sqlalchemy import Connection

__all__ = ["Horizon", "Ordering"]


@dataclass(frozen=True)
class Horizon:
    """Say how far a feed may be read now.

    Attributes:
        settled: the horizon: what is at or below it stays as it is.
        highest: the highest position drawn so far; no cursor of this history lies above it.
    """

    settled: int
    highest: int


class Ordering(Protocol):
    """Know the horizon of a table; one instance a feed and process, shared by its readers."""

    def check(self, connection: Connection) -> None:
        """Refuse a table whose events cannot be put in a safe order.

        Raises:
            ConfigurationError: what the table lacks, and what to change.
        """

    def horizon(self, connection: Connection) -> Horizon:
        """Return the horizon, read through an autocommitting connection.

        What is at or below it is visible to every statement that starts afterwards.

        Raises:
            Unavailable: it is not known yet.
        """
