"""Triggers that write the changes of a table to a log; each database has a file for its own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.types import TypeEngine


@dataclass(frozen=True, kw_only=True)
class Captured:
    """A table whose changes triggers write to a log.

    Attributes:
        label: its name.
        schema: its schema, in which the triggers are as well; None for the connection's default.
        log: the name of the log's table.
        log_schema: the schema of the log's table.
        name: how the names of the triggers begin.
        types: the types of its columns, by name.
        key: the columns of its primary key.
        longest_key: the most characters of an event's key; a digest stands for a longer one.
        quote: quotes a name.
    """

    label: str
    schema: str | None
    log: str
    log_schema: str | None
    name: str
    types: Mapping[str, TypeEngine[Any]]
    key: Sequence[str]
    longest_key: int
    quote: Callable[[str], str]

    @property
    def table(self) -> str:
        """The table's name as SQL has it."""
        return self.own(self.label)

    @property
    def log_table(self) -> str:
        """The name of the log's table as SQL has it."""
        return self._qualified(self.log_schema, self.log)

    def own(self, name: str) -> str:
        """Return a name in the schema of the table as SQL has it."""
        return self._qualified(self.schema, name)

    def _qualified(self, schema: str | None, name: str) -> str:
        return ".".join(self.quote(part) for part in (schema, name) if part)

    def same_key(self, one: str, other: str) -> str:
        """Return the condition that two rows have equal keys, by the index of the table."""
        keys = map(self.quote, self.key)
        return " AND ".join(f"{one}.{name} = {other}.{name}" for name in keys)

    @property
    def insert(self) -> str:
        """The beginning of the statement that inserts partition, id, key, type and data."""
        columns = ", ".join(map(self.quote, ("partition", "id", "key", "type", "data")))
        return f"INSERT INTO {self.log_table} ({columns})"


@dataclass(frozen=True, kw_only=True)
class CaptureDdl:
    """The statements that let triggers write the changes of a table to a log.

    Attributes:
        install: lock writers out, write the rows that are there to the log, and create or replace
            the triggers.
        release: what is to be run after `install`, also after an error.
        uninstall: remove the triggers.
        code: those statements of `install` whose code has to be in the database.
        installed: the query for the code that is there.
        listed: the columns that the code names.
    """

    install: tuple[str, ...]
    release: tuple[str, ...] = ()
    uninstall: tuple[str, ...]
    code: tuple[str, ...]
    installed: str
    listed: Sequence[str]


def literal(text: str) -> str:
    """Return a text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"
