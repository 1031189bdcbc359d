"""Publish a log with its console by uvicorn, on a port that is said."""

from sqlalchemy import MetaData, create_engine
from starlette.applications import Starlette

from benchmarks.actors.serving import serve
from benchmarks.actors.speaking import task
from zeroeventhub import (
    CursorStore,
    EventLog,
    Progress,
    Retention,
    TableFeed,
    everybody,
    feed_routes,
)
from zeroeventhub.console import console_routes


def log_feed(metadata: MetaData, table: str, partitions: int) -> TableFeed:
    """Return the feed of a log, with which consumers register their progress."""
    log = EventLog(metadata, table, partitions=partitions)
    return log.feed(retention=Retention(), progress=Progress())


def main() -> None:
    """Serve the log of a task, and its console at "/", until the process is ended."""
    wanted = task()
    engine = create_engine(wanted["database"])
    feed = log_feed(MetaData(), wanted["table"], wanted["partitions"])
    routes = feed_routes("/orders", feed, engine)
    console = console_routes(
        "/",
        feeds={"orders": routes},
        stores={"consumers": CursorStore(engine)},
        authorize=everybody,
        allow_changes=True,
    )
    serve(Starlette(routes=[*routes, *console]))


if __name__ == "__main__":
    main()
