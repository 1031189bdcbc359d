"""Read a table by hand, as a service does that polls another's: it loses what commits late."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
from psycopg.types.json import set_json_loads

from benchmarks.actors.speaking import perform, task


def main() -> None:
    """Read all rows above the last id, a page in a transaction that keeps the id in SQLite."""
    wanted = task()
    query = f"SELECT id, data FROM {wanted['table']} WHERE id > %s ORDER BY id LIMIT %s"  # noqa: S608

    def work(_: object) -> dict[str, Any]:
        place = Path(wanted["folder"]) / "by_hand.db"
        place.unlink(missing_ok=True)
        kept = sqlite3.connect(place)
        kept.execute("PRAGMA journal_mode = WAL")
        kept.execute("CREATE TABLE place (last INTEGER)")
        kept.execute("INSERT INTO place VALUES (0)")
        kept.commit()
        events, last = 0, 0
        with psycopg.connect(wanted["database"], autocommit=True) as connection:
            set_json_loads(json.loads, connection)
            while rows := connection.execute(query, [last, wanted["limit"]]).fetchall():
                for _id, data in rows:
                    events += bool(data["id"])
                last = rows[-1][0]
                kept.execute("UPDATE place SET last = ?", [last])
                kept.commit()
        kept.close()
        return {"events": events}

    perform(work)


if __name__ == "__main__":
    main()
