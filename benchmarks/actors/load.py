"""Load ready rows into a table, a page in a transaction: the ceiling of applying."""

import sqlite3
from typing import Any

import psycopg

from benchmarks.actors.speaking import perform, task
from benchmarks.events import effects_table

COLUMNS = [column.name for column in effects_table().columns]


def pages_of_bytes(connection: psycopg.Connection[Any], wanted: dict[str, Any]) -> list[bytes]:
    """Return pages of rows as COPY takes them."""
    rows = f"json_populate_record(NULL::{effects_table().name}, data::json)"
    pages = []
    for first in range(0, wanted["events"], wanted["limit"]):
        last = first + wanted["limit"]
        query = f"SELECT made.* FROM {wanted['table']}, {rows} AS made WHERE {wanted['table']}.id"  # noqa: S608
        copy = f"COPY ({query} > {first} AND {wanted['table']}.id <= {last}) TO STDOUT"
        with connection.cursor().copy(copy) as found:
            pages.append(b"".join(found))
    connection.commit()
    return pages


def into_postgresql(wanted: dict[str, Any]) -> None:
    """Load by COPY, bytes that are ready or rows of Python's values."""
    connection = psycopg.connect(wanted["database"])
    pages: list[Any] = pages_of_bytes(connection, wanted)
    if wanted["rows"]:
        types = [column.type.python_type for column in effects_table().columns]
        pages = [[_values(line, types) for line in page.splitlines()] for page in pages]
    copy = f"COPY {effects_table().name} ({', '.join(COLUMNS)}) FROM STDIN"

    def work(_: object) -> dict[str, int]:
        for page in pages:
            with connection.cursor().copy(copy) as into:
                if wanted["rows"]:
                    for row in page:
                        into.write_row(row)
                else:
                    into.write(page)
            connection.commit()
        return {"events": wanted["events"]}

    perform(work)


def _values(line: bytes, types: list[type]) -> tuple[Any, ...]:
    """Return the values of a row that COPY has written."""
    values = zip(line.split(b"\t"), types, strict=True)
    return tuple(text == b"t" if kind is bool else kind(text.decode()) for text, kind in values)


def into_sqlite(wanted: dict[str, Any]) -> None:
    """Load by executemany."""
    connection = sqlite3.connect(wanted["database"])
    members = ", ".join(f"data ->> '$.{name}'" for name in COLUMNS)
    query = f"SELECT {members} FROM {wanted['table']} ORDER BY id LIMIT ? OFFSET ?"  # noqa: S608
    pages = [
        connection.execute(query, [wanted["limit"], first]).fetchall()
        for first in range(0, wanted["events"], wanted["limit"])
    ]
    marks = ", ".join("?" * len(COLUMNS))
    insert = f"INSERT INTO {effects_table().name} ({', '.join(COLUMNS)}) VALUES ({marks})"  # noqa: S608

    def work(_: object) -> dict[str, int]:
        for page in pages:
            connection.executemany(insert, page)
            connection.commit()
        return {"events": wanted["events"]}

    perform(work)


def main() -> None:
    """Load as it is told to."""
    wanted = task()
    (into_sqlite if wanted["sqlite"] else into_postgresql)(wanted)


if __name__ == "__main__":
    main()
