"""Serve tables over HTTP."""

import socket
from collections.abc import Callable
from typing import Any

import click
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from zeroeventhub.cli.options import port_option
from zeroeventhub.cli.table_options import open_feed, publish_options
from zeroeventhub.errors import ConfigurationError, FeedFailure, Unavailable, require
from zeroeventhub.protocol import FIRST
from zeroeventhub.publisher.bound_feed import BoundFeed
from zeroeventhub.server import Observer, feed_routes

GRACE = 10
"""Seconds that open requests may take after SIGTERM."""

STALLED = 30
"""Seconds after which the kernel drops a connection whose reader takes nothing."""


def run_web(
    application: Starlette, host: str, port: int, announce: Callable[[str], None] = lambda _: None
) -> None:
    """Serve an application until SIGTERM or SIGINT; call `announce` with its URL."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigurationError(
            f"Cannot listen on {host} port {port}: {error.strerror}. "
            "Choose another --host or --port."
        ) from None
    with listening:
        # Connections inherit it. Without it the end of every page waits 40 ms for an ACK:
        # asyncio only recognises sockets as TCP that were made with the protocol's number.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED * 1000)
        shown = f"[{host}]" if ":" in host else host
        announce(f"http://{shown}:{listening.getsockname()[1]}")
        config = uvicorn.Config(
            application, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE
        )
        uvicorn.Server(config).run(sockets=[listening])


@click.command()
@publish_options
@click.option("--http-feed", is_flag=True, help="Also answer clients of HTTP Feeds.")
@click.option("--server-sent-events", is_flag=True, help="Also stream server-sent events.")
@click.option("--arrow", is_flag=True, help="Send pages as Arrow to clients that prefer Arrow.")
@click.option(
    "--compressed", is_flag=True, help="Compress pages for clients that accept zstd or gzip."
)
@click.option("--metrics", metavar="PATH", help="Serve metrics for Prometheus at this path.")
@click.option("--path", default="/events", help="Serve the feed at this path.")
@click.option("--host", default="127.0.0.1", help="The address to listen on.")
@port_option
def serve(
    *,
    http_feed: bool,
    server_sent_events: bool,
    arrow: bool,
    compressed: bool,
    metrics: str | None,
    path: str,
    host: str,
    port: int,
    **table: Any,
) -> None:
    """Publish a table as a feed.

    Without --data and --columns, all columns of a row are the data of its event.
    """
    for option, given in (("--path", path), ("--metrics", metrics or "")):
        if set(given) & set("{}"):
            raise ConfigurationError(f"{option} may not have parameters in braces.")
    feed = open_feed(**table)
    _try(feed)
    shown, observer = ([], None) if metrics is None else _metrics(metrics, feed)
    # The feed needs no credentials, so shared caches may store its pages.
    routes = feed_routes(
        path,
        feed,
        shared_cache=True,
        http_feed=http_feed,
        server_sent_events=server_sent_events,
        arrow=arrow,
        compressed=compressed,
        observer=observer,
    )
    info = feed.info()

    def announce(url: str) -> None:
        url = f"{url}/{path.strip('/')}".rstrip("/")
        query = f"token={info.token}&partition={info.partitions[0].id}&cursor={FIRST}"
        click.echo(f"Feed: {url}\nTry:  curl '{url}/events?{query}&pagesizehint=3'")

    run_web(Starlette(routes=[*shown, *routes]), host, port, announce)


def _try(feed: BoundFeed) -> None:
    """Read one event, so that the operator sees an error before the first consumer does."""
    try:
        feed.read(0, FIRST, 1)
    except FeedFailure as error:
        reason = getattr(error.__cause__, "orig", None)
        raise ConfigurationError(f"{error} {reason or ''}".strip()) from error
    except Unavailable:
        return  # The feed waits for an open writer.


def _metrics(path: str, feed: BoundFeed) -> tuple[list[Route], Observer]:
    """Return the route that shows metrics of a feed, and the observer that measures them."""
    require("prometheus_client", extra="prometheus", user="--metrics")
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest  # noqa: PLC0415 - of another extra

    from zeroeventhub.telemetry import PrometheusPublisher  # noqa: PLC0415 - of another extra

    registry = CollectorRegistry()
    telemetry = PrometheusPublisher(registry)
    telemetry.observe_horizon(feed)

    # Not a coroutine, so that Starlette reads the horizon in a thread.
    def show(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return [Route("/" + path.strip("/"), show)], telemetry
