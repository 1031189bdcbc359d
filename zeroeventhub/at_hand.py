"""What ends a question that needs a part of the archive which has to be fetched first."""

from collections.abc import Callable

from zeroeventhub.errors import Unavailable

__all__ = ["NotAtHand", "keep"]

_MOST = 10_000
"""How many parts of an archive are fetched for one question, at most."""


class NotAtHand(Exception):  # noqa: N818 - no error: the question is asked again
    """Say what to fetch before the question is asked again.

    Attributes:
        load: fetches it; what it returns is kept alive until the question is answered.
    """

    def __init__(self, load: Callable[[], object]) -> None:
        super().__init__("A part of the archive has to be fetched first.")
        self.load = load


def keep(held: list[object], part: object) -> None:
    """Keep what was fetched for a question alive until it is answered.

    Raises:
        Unavailable: there are too many parts.
    """
    held.append(part)
    if len(held) > _MOST:
        raise Unavailable("The answer needs too many parts of the archive.", retry_after=60)
