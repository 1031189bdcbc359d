"""Publish tables with uvicorn, on a port that is said."""

import resource
import socket

import uvicorn
from sqlalchemy import create_engine
from starlette.applications import Starlette

from benchmarks.actors.speaking import say, task
from benchmarks.events import feed_table
from zeroeventhub import TableFeed, feed_routes


def main() -> None:
    """Serve the feeds of a task until the process is ended."""
    wanted = task()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    engine = create_engine(wanted["database"])
    routes = []
    for name in wanted["tables"]:
        feed = TableFeed(feed_table(name, wanted["form"]), data="data")
        routes += feed_routes(f"/{name}", feed, engine, name=name)
    config = uvicorn.Config(
        Starlette(routes=routes),
        log_level="error",
        loop=wanted["loop"],
        http=wanted["http"],
        timeout_graceful_shutdown=1,
    )
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listening:
        # Inherited by what is accepted: an answer's last piece waits for no acknowledgement.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        say({"port": listening.getsockname()[1]})
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
