"""When what a feed relies on is looked at, and what else becomes doubtful without it; no I/O."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from zeroeventhub.errors import FeedFailure, Gone
from zeroeventhub.publisher.checkup import Checkup
from zeroeventhub.publisher.finding import Finding

__all__ = ["Checks"]

CHECK_INTERVAL = 60.0
"""Seconds between two looks at what the feed relies on."""


class Checks:
    """Look at all that a feed relies on before it is read, and then from time to time.

    Args:
        checkup: looks.
    """

    def __init__(self, checkup: Checkup) -> None:
        self._checkup = checkup
        self._passed = False
        self._looked_at = -math.inf

    @property
    def are_due(self) -> bool:
        """Tell whether the table should be looked at before it is read."""
        return not self._passed or monotonic() - self._looked_at > CHECK_INTERVAL

    def look_if_due(self, connection: Connection) -> None:
        """Check what the feed relies on, if it is time.

        Raises:
            ConfigurationError: the table does not have it.
        """
        if not self.are_due:
            return
        # Said first, so that readers beside this one do not check as well.
        last, self._looked_at = self._looked_at, monotonic()
        try:
            self._checkup.refuse(connection)
            if not self._passed:
                self._checkup.warn(connection)
        except BaseException:
            self._looked_at = last
            raise
        self._passed = True

    @property
    def unpublished(self) -> str | None:
        """Name an event that is in no partition of the feed; see `Checkup`."""
        return self._checkup.unpublished

    def refuse_unpublished(self, connection: Connection) -> None:
        """Refuse to go on while events are in no partition; see `Checkup.refuse_unpublished`."""
        self._checkup.refuse_unpublished(connection)

    def findings(self, connection: Connection) -> list[Finding]:
        """Look at all of it now; see `BoundFeed.check`."""
        return self._checkup.findings(connection)

    @contextmanager
    def doubting(self) -> Iterator[None]:
        """Look at the table again before anything else is read, if a question about it failed."""
        try:
            yield
        except (FeedFailure, SQLAlchemyError):
            self._looked_at = -math.inf
            raise

    @contextmanager
    def looking_twice(self, connection: Connection) -> Iterator[None]:
        """Say that history is another one only if the table still is what it was."""
        try:
            yield
        except Gone:
            self._checkup.refuse_changes(connection)
            raise
