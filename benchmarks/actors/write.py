"""Write events one by one with pauses, and note when each was committed."""

import json
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import httpx
import psycopg
import redis

from benchmarks.actors.speaking import perform, task

Write = Callable[[int], float]


def into_table(wanted: dict[str, Any], stack: ExitStack) -> Write:
    """Write into a table, with a notification if that is wanted."""
    connection = stack.enter_context(psycopg.connect(wanted["database"]))
    insert = f"INSERT INTO {wanted['table']} (data) VALUES (%s)"  # noqa: S608

    def write(number: int) -> float:
        data = json.dumps({"id": number})
        connection.execute(insert, [data])
        if wanted["notify"]:
            connection.execute("SELECT pg_notify('benchmark', %s)", [data])
        began = time.monotonic()
        connection.commit()
        return began

    return write


def into_publisher(wanted: dict[str, Any], stack: ExitStack) -> Write:
    """Let the publisher's own process write."""
    http = stack.enter_context(httpx.Client())
    return lambda number: float(http.post(f"{wanted['url']}/{number}").text)


def into_redis(wanted: dict[str, Any], stack: ExitStack) -> Write:
    """Write into a stream of Redis."""
    server = stack.enter_context(redis.Redis(port=wanted["port"]))

    def write(number: int) -> float:
        began = time.monotonic()
        server.xadd(wanted["stream"], {"data": json.dumps({"id": number})})
        return began

    return write


def main() -> None:
    """Write as it is told to."""
    wanted, kinds = task(), {"table": into_table, "publisher": into_publisher, "redis": into_redis}
    with ExitStack() as stack:
        write = kinds[wanted["into"]](wanted, stack)

        def work(_: object) -> dict[str, Any]:
            pauses, written = random.Random(1), {}  # noqa: S311 - not a secret
            for number in range(1, wanted["events"] + 1):
                time.sleep(pauses.uniform(0.03, 0.07))
                written[number] = write(number)
            return {"events": wanted["events"], "written": written}

        perform(work)


if __name__ == "__main__":
    main()
