"""Pages that can never be others, kept for a while for the next who ask the same."""

from collections import OrderedDict
from dataclasses import dataclass
from time import monotonic

from zeroeventhub.capacity import Capacity
from zeroeventhub.server.waiting import Question

__all__ = ["EncodedPage", "KeptPages"]

SHARE = 4
"""What part of all that is kept may be read ahead for one reader."""

MOST = 256
"""How many pages are kept, however small: all of them are looked at when any is vouched for."""

OVERHEAD = 1_000
"""Bytes that a page takes beside its body, cursors and stop."""


@dataclass(frozen=True)
class EncodedPage:
    """Hold a page as it is sent.

    Attributes:
        body: its bytes.
        tag: their entity tag; None if they may be others another time.
        events: how many events it has.
        cursor: where the next page begins.
        full: whether there is one already.
    """

    body: bytes
    tag: str | None
    events: int
    cursor: str
    full: bool


class KeptPages:
    """Keep pages within a budget of bytes; those that nobody has asked for the longest go first.

    What is taken out of the table, or changed against what the feed promises, may still be sent
    from here for as long as a page is kept.

    Args:
        capacity: how much is kept, and for how long.
    """

    def __init__(self, capacity: Capacity) -> None:
        self._all = capacity.kept_bytes
        self._taken = 0
        self._seconds = capacity.kept_seconds
        self._pages: OrderedDict[Question, tuple[float, EncodedPage]] = OrderedDict()

    def most(self, size: int) -> int:
        """Say how many pages of a size may be read ahead without throwing out too many others."""
        return self._all // SHARE // max(size, 1)

    def get(self, question: Question) -> EncodedPage | None:
        """Return the page that answers a question, if it is kept."""
        until, page = self._pages.get(question, (0.0, None))
        if page is None:
            return None
        if until < monotonic():
            self._drop(question)
            return None
        self._pages.move_to_end(question)
        return page

    def keep(self, question: Question, page: EncodedPage) -> None:
        """Keep the page that answers a question, and drop those whose time is over."""
        now = monotonic()
        for late in [one for one, (until, _) in self._pages.items() if until < now]:
            self._drop(late)
        self._drop(question)
        self._pages[question] = now + self._seconds, page
        self._taken += _weight(question, page)
        while self._taken > self._all or len(self._pages) > MOST:
            self._drop(next(iter(self._pages)))

    def cursors(self) -> set[str]:
        """Return where the pages begin and end."""
        ends = {page.cursor for _, page in self._pages.values()}
        return ends | {question.cursor for question in self._pages}

    def clear(self) -> None:
        """Keep none of them any longer."""
        while self._pages:
            self._drop(next(iter(self._pages)))

    def _drop(self, question: Question) -> None:
        _, page = self._pages.pop(question, (0.0, None))
        if page is not None:
            self._taken -= _weight(question, page)


def _weight(question: Question, page: EncodedPage) -> int:
    """Return how many bytes a page takes, with the question that it answers."""
    words = (question.cursor, page.cursor, *(str(value) for _, value in question.options))
    return len(page.body) + sum(map(len, words)) + OVERHEAD
