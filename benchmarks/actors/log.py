"""Publish a log that takes events over HTTP, with uvicorn, on a port that is said."""

import gc
import socket

import uvicorn
from sqlalchemy import MetaData, create_engine
from starlette.applications import Starlette

from benchmarks.actors.speaking import say, task
from zeroeventhub import EventLog, feed_routes


def main() -> None:
    """Serve the log of a task until the process is ended."""
    wanted = task()
    log = EventLog(MetaData(), wanted["table"], partitions=8, append=True)
    engine = create_engine(wanted["database"])
    app = Starlette(routes=feed_routes("/log", log.feed(), engine))
    config = uvicorn.Config(
        app, log_level="error", loop="uvloop", http="httptools", timeout_graceful_shutdown=1
    )
    # Several processes share a port, among which the system divides connections.
    place = ("127.0.0.1", wanted["port"])
    with socket.create_server(place, backlog=1024, reuse_port=True) as listening:
        # Inherited by what is accepted: an answer's last piece waits for no acknowledgement.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        gc.freeze()  # as `zeroeventhub serve` does
        say({"port": listening.getsockname()[1]})
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
