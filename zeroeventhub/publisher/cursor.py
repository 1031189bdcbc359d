"""The cursor of a table's feed: a version, a dash, and a position.

`1-1042` stands after the event at position 1042. To consumers it is opaque.
"""

import re

from zeroeventhub.errors import BadCursor

__all__ = ["HIGHEST_POSITION", "decode_position", "encode_position"]

HIGHEST_POSITION = 2**63 - 1

_FORMAT = re.compile(r"1-(0|[1-9][0-9]{0,18})", re.ASCII)


def encode_position(position: int) -> str:
    """Return the cursor that stands after a position."""
    return f"1-{position}"


def decode_position(cursor: str) -> int:
    """Return the position that a cursor stands after.

    Raises:
        BadCursor: no feed over a table has given this cursor.
    """
    match = _FORMAT.fullmatch(cursor)
    if match is None or (position := int(match[1])) > HIGHEST_POSITION:
        raise BadCursor("The cursor is not one that this feed has given.")
    return position
