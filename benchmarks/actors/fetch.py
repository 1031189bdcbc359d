"""Fetch a whole table by a bare cursor of its driver, and do nothing with it."""

import sqlite3
from typing import Any

import pymysql
import pymysql.cursors
from sqlalchemy import make_url

from benchmarks.actors.speaking import perform, task


def connected(database: str) -> Any:
    """Connect to an SQLite file, or to MariaDB with rows that stay at the server until fetched."""
    url = make_url(database)
    if url.get_backend_name() == "sqlite":
        return sqlite3.connect(str(url.database))
    place: dict[str, Any] = {"host": url.host or "localhost", "user": url.username or "root"}
    if socket := url.query.get("unix_socket"):
        place["unix_socket"] = socket
    return pymysql.connect(
        **place,
        password=url.password or "",
        database=url.database,
        cursorclass=pymysql.cursors.SSCursor,
        port=url.port or 3306,
    )


def main() -> None:
    """Fetch as often as it is told to, a page of rows at a time."""
    wanted = task()
    connection = connected(wanted["database"])
    query = f"SELECT id, data FROM {wanted['table']} ORDER BY id"  # noqa: S608

    def work(_: object) -> dict[str, int]:
        events, cursor = 0, connection.cursor()
        cursor.execute(query)
        while rows := cursor.fetchmany(wanted["limit"]):
            events += len(rows)
        return {"events": events}

    perform(work)


if __name__ == "__main__":
    main()
