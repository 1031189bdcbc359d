"""A page of a range, as a task makes rows of it."""

from dataclasses import dataclass
from typing import TypeAlias

from zeroeventhub.arrow.arrow_page import ArrowPage
from zeroeventhub.protocol import Page

__all__ = ["AnyPage", "RangePage", "events_of"]

AnyPage: TypeAlias = ArrowPage | Page


@dataclass(frozen=True)
class RangePage:
    """Hold a page of a range.

    Attributes:
        partition: the partition that it was read from.
        page: its events, as columns or, with their headers, one by one.
        count: how many of them are of the range, from the first one on.
        is_filtered: whether it has only events of the types that were asked for.
    """

    partition: int
    page: AnyPage
    count: int
    is_filtered: bool


def events_of(page: AnyPage) -> int:
    """Count the events of a page."""
    if isinstance(page, Page):
        return len(page.events)
    return sum(batch.num_rows for batch in page.batches)
