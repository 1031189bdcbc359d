"""What a table takes: its columns, and how the data of an event is read for them."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
from sqlalchemy import Dialect, Table

from zeroeventhub.landing.column_form import ABSENT, ColumnForm, Presence
from zeroeventhub.ndjson import PageEvents

__all__ = ["TableForm", "table_form"]

_values = msgspec.structs.astuple


class TableForm:
    """Know the columns of a table that rows may have values for.

    Args:
        table: the table.
        dialect: of the database that has it.

    Attributes:
        table: the table.
        columns: by name; without those that the database computes.
        optional: the places of those with a default, which a row may leave out.
        model: what the data of an event is decoded as, with a field a column.
        is_copied: whether rows are inserted by PostgreSQL's COPY.
    """

    def __init__(self, table: Table, dialect: Dialect) -> None:
        self.table = table
        self.columns: Mapping[str, ColumnForm] = {
            column.name: ColumnForm.of(column, dialect)
            for column in table.columns
            if column.computed is None
        }
        forms = tuple(self.columns.values())
        self.optional = [
            place for place, form in enumerate(forms) if form.presence is Presence.DEFAULT
        ]
        fields = [(f"column_{place}", *form.field) for place, form in enumerate(forms)]
        names = {field[0]: str(name) for field, name in zip(fields, self.columns, strict=True)}
        self.model = msgspec.defstruct("Row", fields, rename=names, kw_only=True, gc=False)
        self.is_copied = dialect.name == "postgresql" and dialect.driver == "psycopg"
        self._decode = msgspec.json.Decoder(self.model).decode
        required = any(form.presence is Presence.REQUIRED for form in forms)
        self._nothing = () if required else msgspec.structs.astuple(self.model())

    def read_all(self, events: PageEvents) -> list[tuple[Any, ...]] | None:
        """Read the rows of a page in one call; None where one event does not fit."""
        values = events.decoded(self.model)
        rows = None if values is None else list(map(_values, values))
        return None if rows is None or self._nothing in rows else rows

    def read(self, raw: bytes) -> tuple[Any, ...]:
        """Read the values of a row from JSON.

        Raises:
            ValueError: it is no object, a value is of another form than its column, or there is
                none for a column that needs one; the text says so without the value.
        """
        row = _values(self._decode(raw))
        if (
            self._nothing
            and row == self._nothing
            and not self.columns.keys() & msgspec.json.decode(raw).keys()
        ):
            raise ValueError("it has no key that is a column")
        return row

    def take(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Take the values of a row that somebody has made.

        Raises:
            ValueError: it has a key that is no column, or no value for a column that needs one.
        """
        if not row:
            raise ValueError("it has no value")
        if unknown := row.keys() - self.columns.keys():
            raise ValueError(f"{', '.join(map(repr, sorted(map(str, unknown))))} is no column")
        values = tuple(
            row.get(name, None if _may_be_null(form) else ABSENT)
            for name, form in self.columns.items()
        )
        for form, value in zip(self.columns.values(), values, strict=True):
            if value is ABSENT and form.presence is Presence.REQUIRED:
                raise ValueError(f"column {form.column.name!r} needs a value")
        return values


def _may_be_null(form: ColumnForm) -> bool:
    return form.presence is Presence.NULL and not form.is_json


@lru_cache(maxsize=64)
def table_form(table: Table, dialect: Dialect) -> TableForm:
    """Return what a table of a database takes; it is found out once."""
    return TableForm(table, dialect)
