"""The cursor of a table's feed: a format, a position, and what shows that it is still the same.

`2-1042-9f3c-0b6d1f20aa` stands after the event at position 1042; four digits belong to the way in
which events are made from rows, and ten to this event. Where the event is still the same, so is
all history before it. `1-1042` cannot be checked in this way. To consumers a cursor is opaque.
"""

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from zeroeventhub.errors import BadCursor, ConfigurationError

__all__ = [
    "HIGHEST_POSITION",
    "START",
    "Place",
    "Seal",
    "digest",
]

HIGHEST_POSITION = 2**63 - 1

_SHORTEST_SECRET = 16

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


START = str(Place(0))
"""The cursor before everything."""


def digest(content: bytes, *, digits: int) -> str:
    """Return a short digest, in hexadecimal digits."""
    return blake2b(content, digest_size=digits // 2).hexdigest()


class Seal:
    """Make what a cursor holds besides its position.

    With a secret, nobody else can find out by it whether an event is what one takes it for, or
    whether two events are the same.

    Args:
        recipe: a digest of how events are made from rows.
        secret: known to the publisher alone; None for digests that everybody can make.

    Raises:
        ConfigurationError: the secret can be guessed.
    """

    def __init__(self, recipe: str, secret: bytes | str | None = None) -> None:
        self._key = None if secret is None else _key(secret)
        self.recipe = recipe
        """A digest of how events are made from rows, and of the secret."""
        if self._key is not None:
            keyed = blake2b(recipe.encode(), digest_size=len(recipe) // 2, key=self._key)
            self.recipe = keyed.hexdigest()

    @property
    def is_secret(self) -> bool:
        """Tell whether only the publisher can make the digests."""
        return self._key is not None

    def check(self, position: int, content: bytes) -> str:
        """Return the digest of the event at a position."""
        if self._key is None:
            return digest(content, digits=10)
        # With the position, so that events of the same content do not have the same digest.
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
