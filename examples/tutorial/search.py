"""A search index and an analytics file: effects outside of any transaction."""

import json
import os
import sys
from pathlib import Path

from reading import LEASE, client, opened

from zeroeventhub import Consumer, Event

INDEX, ANALYTICS = Path("index"), Path("analytics")

engine, store = opened("search.db")


def index(event: Event) -> None:
    """Store a document under the id of its event: a repetition gives the same document."""
    document = INDEX / f"{event.data['id']}.json"
    half = document.with_suffix(f".{os.getpid()}")
    half.write_text(json.dumps(event.data["data"]))
    half.replace(document)


def note(events: list[Event]) -> None:
    """Append rows that carry the ids of their events, so that a report counts each id once."""
    with (ANALYTICS / f"{os.getpid()}.ndjson").open("ab") as rows:
        rows.writelines(event.raw + b"\n" for event in events)


def apply(_: object, events: list[Event]) -> None:
    """Do both. The cursor is committed afterwards, so a crash in between repeats both."""
    for event in events:
        index(event)
    note(events)
    if "--crash" in sys.argv:
        os._exit(1)


if __name__ == "__main__":
    INDEX.mkdir(exist_ok=True)
    ANALYTICS.mkdir(exist_ok=True)
    Consumer(client(), store, "search", lease=LEASE, limit=20).run(apply, handle_signals=True)
