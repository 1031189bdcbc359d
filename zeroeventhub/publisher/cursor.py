"""The cursor of a table's feed: a format, a position, and what shows that it is still the same.

`2-1042-9f3c-0b6d1f20aa` stands after the event at position 1042; four digits belong to the way in
which events are made from rows, and ten to this event. Where the event is still the same, so is
all history before it. `1-1042` cannot be checked in this way. To consumers a cursor is opaque.
"""

import re
from dataclasses import dataclass
from hashlib import blake2b

from zeroeventhub.errors import BadCursor

__all__ = ["HIGHEST_POSITION", "Place", "digest"]

HIGHEST_POSITION = 2**63 - 1

_FORMAT = re.compile(
    r"1-(?P<bare>0|[1-9][0-9]{0,18})"
    r"|2-(?P<checked>[1-9][0-9]{0,18})-(?P<recipe>[0-9a-f]{4})-(?P<check>[0-9a-f]{10})",
    re.ASCII,
)


@dataclass(frozen=True)
class Place:
    """Hold what a cursor says.

    Attributes:
        position: where it stands: after the event at this position.
        recipe: a digest of how events are made from rows; empty in a cursor without a check.
        check: a digest of the event.
    """

    position: int
    recipe: str = ""
    check: str = ""

    @classmethod
    def of(cls, cursor: str) -> "Place":
        """Read a cursor.

        Raises:
            BadCursor: no feed over a table has given this cursor.
        """
        match = _FORMAT.fullmatch(cursor)
        if match is None or (position := int(match["bare"] or match["checked"])) > HIGHEST_POSITION:
            raise BadCursor("The cursor is not one that this feed has given.")
        return cls(position, match["recipe"] or "", match["check"] or "")

    def __str__(self) -> str:
        """Write the cursor."""
        if self.check:
            return f"2-{self.position}-{self.recipe}-{self.check}"
        return f"1-{self.position}"


def digest(content: bytes, *, digits: int) -> str:
    """Return a short digest, in hexadecimal digits."""
    return blake2b(content, digest_size=digits // 2).hexdigest()
