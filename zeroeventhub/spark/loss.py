"""What becomes of a read whose place in history is gone."""

import logging
from collections.abc import Callable
from typing import TypeVar

from zeroeventhub.errors import Diverged, Trimmed

__all__ = ["Loss"]

_Found = TypeVar("_Found")

_ADVICE = (
    "Set failOnDataLoss to false to go on with what there is, or start again with a new checkpoint."
)

_log = logging.getLogger(__name__)


class Loss:
    """Stop where events are gone that were not read, or report it and go on.

    Args:
        fails: whether to stop.
    """

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails

    def survive(
        self, partition: int, cursor: str, question: Callable[[str], _Found]
    ) -> _Found | None:
        """Ask something of a feed that starts at a cursor.

        Args:
            partition: the partition.
            cursor: the cursor.
            question: asks it of a cursor; of the earliest one where the other was trimmed.

        Returns:
            The answer; None if the cursor is of another history, in which there is no such place.

        Raises:
            Trimmed: events behind the cursor are gone, and that is to stop the read.
            Diverged: the feed has another history by now, and that is to stop the read.
        """
        try:
            return question(cursor)
        except Trimmed as error:
            if self._fails or error.earliest is None:
                raise Trimmed(_told(partition, error), earliest=error.earliest) from None
            _log.warning(
                "Events of partition %d behind the cursor %s are gone, and were not read: the "
                "feed no longer has them. Going on at the earliest one, %s.",
                partition,
                cursor,
                error.earliest,
            )
            return question(error.earliest)
        except Diverged as error:
            if self._fails:
                raise Diverged(_told(partition, error)) from None
            _log.warning(
                "The cursor %s of partition %d is of a history that the feed no longer has. Going "
                "on at its head: events before that may be missing.",
                cursor,
                partition,
            )
            return None


def _told(partition: int, error: Exception) -> str:
    return f"Partition {partition} cannot be read on. {error} {_ADVICE}"
