"""Publish a log that takes events over HTTP, with uvicorn, on a port that is said."""

from sqlalchemy import MetaData, create_engine
from starlette.applications import Starlette

from benchmarks.actors.serving import serve
from benchmarks.actors.speaking import task
from zeroeventhub import EventLog, feed_routes


def main() -> None:
    """Serve the log of a task until the process is ended."""
    wanted = task()
    log = EventLog(MetaData(), wanted["table"], partitions=8, append=True)
    engine = create_engine(wanted["database"])
    # Several processes share a port, among which the system divides connections.
    serve(Starlette(routes=feed_routes("/log", log.feed(), engine)), port=wanted["port"])


if __name__ == "__main__":
    main()
