"""Serve tables over HTTP."""

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
import uvicorn
from click.core import ParameterSource
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from zeroeventhub.cli.configuration import described, entry, values
from zeroeventhub.cli.options import server_options
from zeroeventhub.cli.table_options import mount_options, open_feed, publish_options
from zeroeventhub.errors import ConfigurationError, FeedFailure, Unavailable, require
from zeroeventhub.protocol import FIRST
from zeroeventhub.publisher.bound_feed import BoundFeed
from zeroeventhub.server import feed_routes

if TYPE_CHECKING:
    from zeroeventhub.telemetry import PrometheusPublisher

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


class ServeCommand(click.Command):
    """A command that serves feeds of the file, unless its options describe one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Look the feeds up first: FEED, or all of them."""
        words = self.make_parser(ctx).parse_args([*args])[0]
        name, file = words.get("feed"), words.get("config")
        if isinstance(name, str):
            ctx.obj = {name: entry("feeds", name, file)}
        elif words.keys().isdisjoint({"database", "table"}):
            ctx.obj = described("feeds", file)
        if ctx.obj is not None:
            ctx.default_map = described("serve", file)
        return super().parse_args(ctx, args)


@click.command(cls=ServeCommand)
@publish_options
@mount_options
@server_options
@click.pass_context
def serve(
    context: click.Context, /, *, metrics: str | None, host: str, port: int, **options: Any
) -> None:
    """Publish tables as feeds: those of the file, or the one that FEED or the options describe.

    Without --data and --columns, all columns of a row are the data of its event.
    """
    feeds, routes = _mounted(_described(context, options), metrics)

    def announce(address: str) -> None:
        for path, feed in feeds.items():
            url, info = f"{address}{path}".rstrip("/"), feed.info()
            query = f"token={info.token}&partition={info.partitions[0].id}&cursor={FIRST}"
            click.echo(f"Feed: {url}\nTry:  curl '{url}/events?{query}&pagesizehint=3'")

    run_web(Starlette(routes=routes), host, port, announce)


def _described(context: click.Context, options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the options of each feed by its name; options that are given are of all feeds."""
    if context.obj is None:
        return {"feed": options}
    given = {
        name: value
        for name, value in options.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    return {
        name: values(publish_options, mount_options, given={"path": f"/{name}", **feed}) | given
        for name, feed in context.obj.items()
    }


def _mounted(
    described: dict[str, dict[str, Any]], metrics: str | None
) -> tuple[dict[str, BoundFeed], list[Route]]:
    """Open feeds; return them by their paths, and the routes of all."""
    observer, routes = (None, []) if metrics is None else _metrics(metrics)
    feeds: dict[str, BoundFeed] = {}
    for name, options in described.items():
        mount = {key: options.pop(key) for key in values(mount_options, given={})}
        path = _path("--path", mount.pop("path"))
        if path in feeds:
            raise ConfigurationError(f"Two feeds have the path {path}: each needs its own.")
        try:
            feed = feeds[path] = open_feed(**options)
            _try(feed)
        except ConfigurationError as error:
            raise ConfigurationError(f"Feed {name}: {error}") from error
        if observer is not None:
            observer.observe_horizon(feed, name)
        # The feed needs no credentials, so shared caches may store its pages.
        routes += feed_routes(path, feed, name=name, observer=observer, shared_cache=True, **mount)
    return feeds, routes


def _path(option: str, path: str) -> str:
    if set(path) & set("{}"):
        raise ConfigurationError(f"{option} may not have parameters in braces.")
    return f"/{path.strip('/')}"


def _try(feed: BoundFeed) -> None:
    """Read one event, so that the operator sees an error before the first consumer does."""
    try:
        feed.read(0, FIRST, 1)
    except FeedFailure as error:
        reason = getattr(error.__cause__, "orig", None)
        raise ConfigurationError(f"{error} {reason or ''}".strip()) from error
    except Unavailable:
        return  # The feed waits for an open writer.


def _metrics(path: str) -> "tuple[PrometheusPublisher, list[Route]]":
    """Return what measures feeds for Prometheus, and the route that shows it."""
    require("prometheus_client", extra="prometheus", user="--metrics")
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest  # noqa: PLC0415 - of another extra

    from zeroeventhub.telemetry import PrometheusPublisher  # noqa: PLC0415 - of another extra

    registry = CollectorRegistry()

    # Not a coroutine, so that Starlette reads the horizons in a thread.
    def show(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return PrometheusPublisher(registry), [Route(_path("--metrics", path), show)]
