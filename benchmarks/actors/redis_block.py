"""Wait for the entries of a stream of Redis, and note when each is there."""

import json
import time
from typing import Any

import redis

from benchmarks.actors.speaking import perform, task


def main() -> None:
    """Wait until a number of entries were seen."""
    wanted, seen = task(), dict[int, float]()
    server = redis.Redis(port=wanted["port"], protocol=2)

    def work(_: object) -> dict[str, Any]:
        last = b"0"
        while len(seen) < wanted["events"]:
            ((_name, entries),) = server.xread({wanted["stream"]: last}, block=0)
            now = time.monotonic()
            for last, fields in entries:  # noqa: B007 - where to go on
                seen[json.loads(fields[b"data"])["id"]] = now
        return {"events": len(seen), "seen": seen}

    perform(work)


if __name__ == "__main__":
    main()
