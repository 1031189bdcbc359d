"""The mark: up to where a feed's table has been trimmed, and which cursors that spares."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hmac import compare_digest

from zeroeventhub.errors import Diverged, FeedFailure
from zeroeventhub.publisher.cursor import START, Place

__all__ = ["NOTHING_TRIMMED", "Mark", "begun_again"]


@dataclass(frozen=True)
class Mark:
    """Say what is gone from a feed's table.

    Attributes:
        trimmed: the position of the last event that was trimmed: there and below, none is left.
        earliest: the cursor behind that event, which stands before the first one that is left.
        compacted: the position up to which events may be missing one by one.
        moved: the position up to which events are in the feed's archive alone.
        partitions: by partition, the cursor behind the last of its events that was trimmed; one
            that is not named may have lost any up to the mark.
    """

    trimmed: int = 0
    earliest: str = START
    compacted: int = 0
    moved: int = 0
    partitions: Mapping[int, str] = field(default_factory=dict)

    def spares(self, place: Place, partition: int | None) -> bool:
        """Tell whether all that lies behind a place at the mark or below it is still there.

        A place with a digest counts only where that can be compared: what another history has had
        behind such a place, nobody knows any more.

        Args:
            place: at the mark or below it.
            partition: the one that is read; None for all of them.

        Raises:
            Diverged: another event stood at this place.
        """
        known = self.partitions.get(-1 if partition is None else partition)
        if place.position == self.trimmed:
            last = Place.of(self.earliest)
        elif known is None:
            return False
        else:
            last = Place.of(known)
        if place.position != last.position:
            is_behind = place.position > last.position and not place.check
            return is_behind or last.position == 0
        comparable = place.check and place.recipe == last.recipe
        if comparable and not compare_digest(place.check, last.check):
            raise Diverged(
                "The event at this cursor, which has been trimmed, was not the one that it was "
                "given for: the feed's history is another one."
            )
        return True


NOTHING_TRIMMED = Mark()


def begun_again(mark: int) -> FeedFailure:
    """Say that a table has events at numbers at which it was trimmed.

    Args:
        mark: the position up to which it was.
    """
    return FeedFailure(f"The table's numbers start again below {mark}, up to which it was trimmed.")
