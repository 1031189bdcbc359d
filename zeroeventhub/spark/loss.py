"""What becomes of a read whose place in history is gone."""

from collections.abc import Callable
from typing import TypeVar

from zeroeventhub.errors import Diverged, Gone, Trimmed
from zeroeventhub.protocol import FIRST
from zeroeventhub.spark.log import log

__all__ = ["Loss"]

_Found = TypeVar("_Found")
_Lost = TypeVar("_Lost", Trimmed, Diverged)

_ADVICE = (
    "Set failOnDataLoss to false to go on with what there is, or start again with a new checkpoint."
)


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
            Trimmed: events behind the cursor are gone, and that is to stop the read; or so is the
                place at which it was to end.
            Diverged: the feed has another history by now, and that is to stop the read.
        """
        try:
            return question(cursor)
        except Trimmed as error:
            if self._fails:
                raise _told(partition, error) from None
            earliest = error.earliest or FIRST
            log.warning(
                "Events of partition %d behind the cursor %s are gone, and were not read: the "
                "feed no longer has them. Going on at the earliest one, %s.",
                partition,
                cursor,
                earliest,
            )
        except Diverged as error:
            if self._fails:
                raise _told(partition, error) from None
            log.warning(
                "The cursor %s of partition %d is of a history that the feed no longer has. Going "
                "on at its head: events before that may be missing.",
                cursor,
                partition,
            )
            return None
        try:
            return question(earliest)
        except Trimmed as error:
            # Where the read was to end is gone as well.
            raise _told(partition, error) from None

    def pass_over(self, partition: int) -> None:
        """Pass over what was planned to be read from a partition that is gone.

        Raises:
            Gone: that is to stop the read.
        """
        error = Gone(
            f"Partition {partition} of the feed is gone, and the rest of what was planned to be "
            "read from it cannot be found in others."
        )
        if self._fails:
            raise Gone(f"{error} {_ADVICE}")
        log.warning("%s It was not read.", error)


def _told(partition: int, error: _Lost) -> _Lost:
    message = f"Partition {partition} cannot be read on. {error} {_ADVICE}"
    if isinstance(error, Trimmed):
        return type(error)(message, earliest=error.earliest)
    return type(error)(message)
