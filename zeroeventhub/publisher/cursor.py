"""The cursor of a table's feed: a format number, a position, and digests to check it by.

`2-1042-9f3c-0b6d1f20aa` is the place after the event at position 1042: `9f3c` is a digest of how
the feed makes events from rows, `0b6d1f20aa` one of this event. If the event still has the same
digest, the history before it is the same too. `1-1042` has no digests and is not checked. To
consumers a cursor is opaque.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from zeroeventhub.errors import BadCursor, ConfigurationError

HIGHEST_POSITION = 2**63 - 1

_SHORTEST_SECRET = 16

_FORMAT = re.compile(
    r"1-(?P<bare>0|[1-9][0-9]{0,18})"
    r"|2-(?P<checked>[1-9][0-9]{0,18})-(?P<recipe>[0-9a-f]{4})-(?P<check>[0-9a-f]{10})",
    re.ASCII,
)


@dataclass(frozen=True)
class Place:
    """The parts of a cursor.

    Attributes:
        position: that of the event after which reading continues.
        recipe: a digest of how events are made from rows; empty in a cursor without a check.
        check: a digest of the event.
    """

    position: int
    recipe: str = ""
    check: str = ""

    @staticmethod
    @lru_cache(maxsize=1024)  # more than the pages in a cache, whose cursors are read over and over
    def of(cursor: str) -> "Place":
        """Read a cursor.

        Raises:
            BadCursor: no feed over a table has given this cursor.
        """
        match = _FORMAT.fullmatch(cursor)
        if match is None or (position := int(match["bare"] or match["checked"])) > HIGHEST_POSITION:
            raise BadCursor("The cursor is not one that this feed has given.")
        return Place(position, match["recipe"] or "", match["check"] or "")

    def __str__(self) -> str:
        """Write the cursor."""
        if self.check:
            return f"2-{self.position}-{self.recipe}-{self.check}"
        return f"1-{self.position}"


START = str(Place(0))
"""The cursor before everything."""


def digest(content: bytes, *, digits: int) -> str:
    """Return a short digest, in hexadecimal digits."""
    return blake2b(content, digest_size=digits // 2).hexdigest()


class Signer:
    """Compute the digests of a cursor.

    With a secret, a reader that holds a cursor cannot test guesses of the event's content, nor
    learn that two events have the same content.
    """

    def __init__(self, recipe: str, secret: bytes | str | None = None) -> None:
        self._key = None if secret is None else _key(secret)
        self.is_secret = secret is not None
        """Whether only the publisher can compute the digests."""
        self.recipe = recipe
        """A digest of how events are made from rows, and of the secret."""
        if self._key is not None:
            keyed = blake2b(recipe.encode(), digest_size=len(recipe) // 2, key=self._key)
            self.recipe = keyed.hexdigest()

    def check(self, position: int, content: bytes) -> str:
        """Return the digest of the event at a position."""
        if self._key is None:
            return blake2b(content, digest_size=5).hexdigest()
        # Salted with the position, so that events of the same content have different digests.
        salt = position.to_bytes(8)
        return blake2b(content, digest_size=5, key=self._key, salt=salt).hexdigest()


def _key(secret: Any) -> bytes:
    content = secret.encode() if isinstance(secret, str) else secret
    if not isinstance(content, bytes) or len(content) < _SHORTEST_SECRET:
        raise ConfigurationError(
            f"The secret of cursors is text or bytes, at least {_SHORTEST_SECRET} of them: take "
            "what secrets.token_hex() gives, and keep it."
        )
    return blake2b(content, digest_size=32).digest()
