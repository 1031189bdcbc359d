"""What ends a question that needs a part of the archive which has to be fetched first."""

from collections.abc import Callable

from zeroeventhub.errors import Unavailable

__all__ = ["NotAtHand", "Parts"]

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


class Parts:
    """Keep what was fetched for a question alive until it is answered."""

    def __init__(self) -> None:
        self._held: list[object] = []

    def keep(self, part: object) -> None:
        """Keep a part.

        Raises:
            Unavailable: there are too many of them.
        """
        self._held.append(part)
        if len(self._held) > _MOST:
            raise Unavailable("The answer needs too many parts of the archive.", retry_after=60)
