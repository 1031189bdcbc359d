"""Listen to the notifications of PostgreSQL, and note when each is there."""

import json
import time
from typing import Any

import psycopg

from benchmarks.actors.speaking import perform, task


def main() -> None:
    """Listen until a number of events were heard of."""
    wanted, seen = task(), dict[int, float]()
    with psycopg.connect(wanted["database"], autocommit=True) as connection:
        connection.execute("LISTEN benchmark")

        def work(_: object) -> dict[str, Any]:
            for notice in connection.notifies():
                seen[json.loads(notice.payload)["id"]] = time.monotonic()
                if len(seen) >= wanted["events"]:
                    break
            return {"events": len(seen), "seen": seen}

        perform(work)


if __name__ == "__main__":
    main()
