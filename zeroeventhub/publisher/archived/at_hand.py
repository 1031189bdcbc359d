"""What ends a question that needs a part of the archive which has to be fetched first."""

from collections.abc import Callable

__all__ = ["NotAtHand"]


class NotAtHand(Exception):  # noqa: N818 - no error: the question is asked again
    """Say what to fetch before the question is asked again.

    Attributes:
        load: fetches it; what it returns is kept alive until the question is answered.
    """

    def __init__(self, load: Callable[[], object]) -> None:
        super().__init__("A part of the archive has to be fetched first.")
        self.load = load
