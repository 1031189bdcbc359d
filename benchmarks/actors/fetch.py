"""Fetch a whole table of SQLite by a bare cursor, and do nothing with it."""

import sqlite3

from benchmarks.actors.speaking import perform, task


def main() -> None:
    """Fetch as often as it is told to, a page of rows at a time."""
    wanted = task()
    connection = sqlite3.connect(wanted["database"])
    query = f"SELECT id, data FROM {wanted['table']} ORDER BY id"  # noqa: S608

    def work(_: object) -> dict[str, int]:
        events, cursor = 0, connection.execute(query)
        while rows := cursor.fetchmany(wanted["limit"]):
            events += len(rows)
        return {"events": events}

    perform(work)


if __name__ == "__main__":
    main()
