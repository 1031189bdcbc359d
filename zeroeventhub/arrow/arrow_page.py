"""A page whose events are columns, and the form that it has on the wire."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from zeroeventhub.protocol import Page

__all__ = ["EVENTS", "ROWS", "ArrowPage", "batch_of"]

ROWS = pa.schema([pa.field("data", pa.string()), pa.field("checkpoint", pa.string())])
"""The schema on the wire, where a row is what a line is elsewhere."""

EVENTS = pa.schema([pa.field("data", pa.string(), nullable=False)])
"""The schema of what a reader is given: the JSON of each event's data, byte for byte."""


@dataclass(frozen=True)
class ArrowPage:
    """Hold events of one partition up to and including a checkpoint; see `Page`.

    Attributes:
        batches: the events in the partition's order, as record batches of the schema `EVENTS`.
        cursor: the checkpoint: where the next page starts.
        caught_up: whether the page held everything that could be read just then.
        stop_reached: whether the page ends at the cursor that the read was to stop at.
    """

    batches: Sequence[pa.RecordBatch]
    cursor: str
    caught_up: bool = False
    stop_reached: bool = False

    @classmethod
    def of(cls, page: Page) -> "ArrowPage":
        """Make columns of a page that came as lines."""
        data = pa.array([event.raw for event in page.events], pa.string())
        batches = [batch_of(data)] if page.events else []
        return cls(batches, page.cursor, page.caught_up, page.stop_reached)


def batch_of(data: pa.StringArray) -> pa.RecordBatch:
    """Make a batch of events, given the JSON of each."""
    return pa.record_batch([data], schema=EVENTS)
