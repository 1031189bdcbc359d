"""An event that a log has kept."""

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from sqlalchemy import RowMapping, Select, Table, select

from zeroeventhub.cursors.clock import as_utc
from zeroeventhub.protocol import Event
from zeroeventhub.publisher.json_form import json_form

__all__ = ["KeptEvent", "kept_events"]


@dataclass(frozen=True)
class KeptEvent:
    """Hold an event that a log has kept.

    Attributes:
        key: what it has happened to.
        version: its number within the key.
        id: tells it from all others.
        type: what has happened.
        time: when it was appended.
        raw: the JSON of its data, as the database has it.
    """

    key: str
    version: int
    id: str
    type: str
    time: datetime
    raw: bytes

    @cached_property
    def data(self) -> Any:
        """Decode the event's data; done once."""
        return Event(self.raw).data

    @classmethod
    def of(cls, row: RowMapping) -> "KeptEvent":
        """Make one of a row of `kept_events`."""
        values = dict(row)
        return cls(raw=values.pop("text").encode(), time=as_utc(values.pop("time")), **values)


def kept_events(table: Table) -> Select[Any]:
    """Select what a KeptEvent is made of from the table of a log."""
    columns = table.c
    text = json_form(columns.data, "data").select.label("text")
    return select(columns.key, columns.version, columns.id, columns.type, columns.time, text)
