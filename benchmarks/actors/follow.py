"""Follow a feed at its head, and note when a handler sees each event."""

import time
from typing import Any

from sqlalchemy import Connection

from benchmarks.actors.consume import new_store
from benchmarks.actors.speaking import perform, task
from zeroeventhub import Client, Consumer, PendingPage


def main() -> None:
    """Follow until a number of events were seen."""
    wanted = task()
    store, seen = new_store(wanted["folder"]), dict[int, float]()
    client = Client(wanted["url"])
    client.discover()
    consumer = Consumer(client, store, "benchmark")

    def note(_: Connection, page: PendingPage) -> None:
        now = time.monotonic()
        for event in page.events:
            seen[event.data["id"]] = now
        if len(seen) >= wanted["events"]:
            consumer.stop()

    def work(_: object) -> dict[str, Any]:
        consumer.run(note)
        return {"events": len(seen), "seen": seen}

    perform(work)


if __name__ == "__main__":
    main()
