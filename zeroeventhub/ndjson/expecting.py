"""What is refused wherever it stands."""

from zeroeventhub.errors import ProtocolError
from zeroeventhub.protocol import FIRST, LAST, is_cursor

__all__ = ["expect_cursor"]


def expect_cursor(cursor: str) -> str:
    """Refuse a cursor that could not be read from."""
    if cursor in {FIRST, LAST} or not is_cursor(cursor):
        raise ProtocolError("The feed gave a cursor that cannot be read from.")
    return cursor
