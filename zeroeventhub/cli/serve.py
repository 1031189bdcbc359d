"""Serve feeds over HTTP."""

import gc
import json
import multiprocessing
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from ipaddress import ip_address
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import uvicorn
from click.core import ParameterSource
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp
from uvicorn.importer import ImportFromStringError, import_from_string

from zeroeventhub.cli.configuration import FileCommand, described, entry, keys, located, values
from zeroeventhub.cli.options import CONFIG, server_options
from zeroeventhub.cli.output import write_log
from zeroeventhub.cli.table_options import mount_options, open_archive, open_feed, publish_options
from zeroeventhub.cli.tokens import authorization, read_tokens
from zeroeventhub.cli.upkeep import NEEDED, Task, check_upkeep, upkeep
from zeroeventhub.errors import ConfigurationError, FeedFailure, Unauthorized, Unavailable, require
from zeroeventhub.extensions import CURSOR_OF_TIME
from zeroeventhub.protocol import FIRST
from zeroeventhub.publisher.bound_feed import BoundFeed
from zeroeventhub.server import (
    Authorize,
    FeedAuthorization,
    Observer,
    bearer_tokens,
    everybody,
    feed_routes,
)
from zeroeventhub.server.problems import check_help

GRACE = 10
"""Seconds that open requests may take after SIGTERM."""

STALLED = 30
"""Seconds after which the kernel drops a connection whose reader takes nothing."""

UVICORN: dict[str, Any] = {
    "log_level": "warning",
    "access_log": False,
    "timeout_graceful_shutdown": GRACE,
    # A worker answers only when it has imported its code, which a busy machine takes long for.
    "timeout_worker_healthcheck": 30,
}
"""How uvicorn serves feeds and consoles."""

_WORKER = "ZEROEVENTHUB_WORKER"
"""The variable by which a worker learns the command line of its server."""

_MEASURED = "PROMETHEUS_MULTIPROC_DIR"
"""The variable of the folder in which prometheus_client adds up the workers."""


@dataclass(frozen=True)
class _Asked:
    """What the command line asks for: by default the feed that its options describe."""

    file: str  # it describes feeds
    feeds: dict[str, Any] | None = None  # of the file, by name
    place: str | None = None  # the module of feeds that Python makes, and their name in it

    @property
    def upkeep(self) -> list[Task]:
        """Return the upkeep of the feeds that the file asks for, those of a feed in their order."""
        return [
            Task(name, feed, self.file, table["every"])
            for feed, entries in (self.feeds or {}).items()
            for name in NEEDED
            if "every" in (table := entries.get(name, {}))
        ]


class ServeCommand(FileCommand):
    """A command that serves feeds of the file, unless it is asked for others."""

    def look_up(self, ctx: click.Context, words: dict[str, Any]) -> tuple[str, ...]:
        """Look the feeds up."""
        name, file = words.get("feed"), words.get("config")
        asked = partial(_Asked, file or CONFIG)
        if isinstance(name, str) and "log" in words:
            raise ConfigurationError("--log is a feed by itself: leave out --log, or FEED.")
        if isinstance(name, str) and ":" in name:
            if not words.keys().isdisjoint(keys(publish_options)):
                raise ConfigurationError(f"{name} describes its feeds: leave out those options.")
            ctx.obj = asked(place=name)
        elif isinstance(name, str):
            ctx.obj = asked(feeds={name: entry("feeds", name, file)})
        elif words.keys().isdisjoint({"database", "table", "log", "archive"}):
            ctx.obj = asked(feeds=described("feeds", file))
            if not ctx.obj.feeds:
                raise ConfigurationError(f"{file or CONFIG} describes no feeds.")
        else:
            ctx.obj = asked()
        if ctx.obj.feeds is None and not file:
            return ()
        ctx.default_map = described("serve", file)
        return ("serve",)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the arguments for workers."""
        ctx.meta[__name__] = [*args]
        return super().parse_args(ctx, args)


@click.command(cls=ServeCommand)
@publish_options
@click.option(
    "--log",
    metavar="NAME",
    help="In the place of --table: the table of a log, to which others append. It is made unless "
    "it exists, by default in the SQLite file NAME.db.",
)
@mount_options
@server_options
@click.pass_context
def serve(
    context: click.Context,
    /,
    *,
    host: str,
    port: int,
    token_file: Path | None,
    public: bool,
    workers: int,
    **_: Any,
) -> None:
    """Publish tables as feeds over HTTP.

    Without FEED and options, the command publishes all feeds of zeroeventhub.toml; with FEED, the
    feed of this name; with --database and --table, the feed that the options describe. FEED may
    also be MODULE:NAME: an object in a Python module, either a mapping of feeds by name or an ASGI
    application.

    Without --data and --columns, all columns of a row are the data of its event. With --archive
    and no table, the command publishes the archive, and needs no database.
    """
    if not (token_file or public or is_loopback(host)):
        raise ConfigurationError(
            f"Everybody who can connect to {host} could read all feeds. Let in only readers with a "
            "token by --token-file, or allow everybody by --public.",
            "host",
        )
    application, feeds, console = _site(context)
    with listen(host, port) as listening, upkeep(context.obj.upkeep):
        address = origin(host, listening)
        for path, feed in feeds.items() or [("", None)]:
            _announce(f"{address}{path}".rstrip("/"), feed, has_tokens=token_file is not None)
        if console:
            click.echo(f"Open: {address}{console}")
        if workers == 1:
            gc.freeze()  # as in a worker
            run(application, listening)
            return
        is_verbose = context.find_root().params.get("verbose", False)
        os.environ[_WORKER] = json.dumps([is_verbose, context.meta[__name__]])
        context.close()  # of connections: each worker opens its own
        with TemporaryDirectory() as folder:
            os.environ[_MEASURED] = folder
            uvicorn.run(
                f"{__name__}:worker",
                factory=True,
                workers=workers,
                fd=listening.fileno(),
                **UVICORN,
            )


def worker() -> ASGIApp:
    """Make the application of a worker, by the command line of its server."""
    is_verbose, arguments = json.loads(os.environ[_WORKER])
    write_log(verbose=is_verbose)
    if (server := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_end_with, args=(server,), daemon=True).start()
    with serve.make_context("serve", arguments).scope(cleanup=False) as context:
        application = _site(context)[0]
    # The collector then looks only at what requests make, and at nothing that was imported, for
    # which all of them would wait tens of milliseconds.
    gc.freeze()
    return application


def _end_with(server: BaseProcess) -> None:
    """End this worker when its server has ended, which may have been killed."""
    server.join()
    signal.raise_signal(signal.SIGTERM)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def named(*hosts: str) -> Middleware:
    """Return what refuses requests to other names than these and those of this machine.

    A name that somebody else lets point to this machine is refused: the browser would take the
    server for that person's site.
    """
    # An address of IPv6 begins with a bracket, and is no name.
    known = ["127.0.0.1", "localhost", "[", *hosts]
    return Middleware(TrustedHostMiddleware, allowed_hosts=known)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens, as a server of feeds needs it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigurationError(
            f"Cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}. "
            "Choose another --host or --port."
        ) from None
    # Connections inherit it. Without it the end of every page waits 40 ms for an ACK:
    # asyncio only recognises sockets as TCP that were made with the protocol's number.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED * 1000)
    return listening


def run(application: ASGIApp, listening: socket.socket) -> None:
    """Serve an application until a signal ends it."""
    with suppress(KeyboardInterrupt):  # which uvicorn raises again once all answers are sent
        uvicorn.Server(uvicorn.Config(application, **UVICORN)).run(sockets=[listening])


def origin(host: str, listening: socket.socket) -> str:
    """Return where a server is reached, as the start of a URL."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listening.getsockname()[1]}"


def _announce(url: str, feed: Any, *, has_tokens: bool) -> None:
    click.echo(f"Feed: {url}")
    if isinstance(feed, BoundFeed):
        info = feed.info()
        query = f"token={info.token}&partition={info.partitions[0].id}&cursor={FIRST}"
        header = " -H 'Authorization: Bearer TOKEN'" if has_tokens else ""
        click.echo(f"Try:  curl '{url}/events?{query}&pagesizehint=3'{header}")


def _site(context: click.Context) -> tuple[ASGIApp, dict[str, Any], str]:
    """Return the application, its feeds by their paths, and the path of its console, if any."""
    asked: _Asked = context.obj
    metrics, token_file = context.params["metrics"], context.params["token_file"]
    help_url = context.params["help_url"]
    tokens = None if token_file is None else read_tokens(token_file)
    hook = None if tokens is None else bearer_tokens(tokens)
    made = None if asked.place is None else _imported(asked.place)
    if made is not None and not isinstance(made, Mapping):
        if metrics or help_url or any(_choices(context.params).values()):
            raise ConfigurationError(
                f"{asked.place} is an application, which chooses itself how it serves feeds."
            )
        return made if hook is None else FeedAuthorization(made, hook), {}, ""
    observer, observe_horizon, routes = _metrics(metrics, hook) if metrics else (None, None, [])
    feeds: dict[str, Any] = {}
    shown: dict[str, list[Route]] = {}
    check_help(help_url)  # here, as it is no mistake of a feed
    for name, options in _described(context, made).items():
        with located(context, asked.file, *(("feeds", name) if asked.feeds else ())):
            path = _path("path", options["path"])
            if path in feeds:
                raise ConfigurationError(f"Another feed has the path {path} already.", "path")
            if metrics and path == _path("metrics", metrics):
                raise ConfigurationError(f"The path {path} is that of --metrics.", "path")
            table = (asked.feeds or {}).get(name, {})
            feed = _open(options, is_trimmed="trim" in table) if made is None else made[name]
            if table:
                check_upkeep(table, knows_times=CURSOR_OF_TIME in feed.info().extensions)
            feeds[path] = feed
            is_named = made is not None or asked.feeds is not None
            shown[name if is_named else options["table"] or "archive"] = feed_routes(
                path,
                feed,
                name=name,
                authorize=authorization(tokens, table.get("readers"), may_append=options["log"]),
                observer=observer,
                # Without tokens a feed needs no credentials, so shared caches may store its pages.
                shared_cache=tokens is None,
                help_url=help_url,
                **_choices(options),
            )
            if observe_horizon is not None and isinstance(feed, BoundFeed):
                observe_horizon(feed, name)
    routes += [route for of_feed in shown.values() for route in of_feed]
    if hook is None and is_loopback(context.params["host"]):
        hook = everybody  # who is on this machine also sees the names of writers
    place = "/console" if any(route.path == "/" for route in routes) else "/"
    console = _console(place, shown, hook, help_url)
    # By --public, a proxy on this machine may ask under any name.
    is_public = tokens is not None or context.params["public"]
    guards = [] if is_public else [named(context.params["host"])]
    application = Starlette(routes=[*routes, *console], middleware=guards)
    return application, feeds, place if console else ""


def _console(
    place: str, feeds: Mapping[str, list[Route]], hook: Authorize | None, help_url: str
) -> list[BaseRoute]:
    """Return the routes of a console of the feeds; none if Jinja is missing."""
    if find_spec("jinja2") is None:
        return []
    from zeroeventhub.console import console_routes  # noqa: PLC0415 - of another extra

    names = {re.sub(r"[^A-Za-z0-9._-]", "-", name)[:100]: routes for name, routes in feeds.items()}
    return console_routes(place, feeds=names, authorize=hook, help_url=help_url)


def _described(context: click.Context, made: Collection[str] | None) -> dict[str, dict[str, Any]]:
    """Return the options of each feed by its name; options that are given are of all feeds."""
    groups = (publish_options, mount_options)
    options = {name: context.params[name] for name in keys(*groups)} | {"log": False}
    if made is not None:
        return {name: {**options, "path": name} for name in made}
    if context.obj.feeds is None:
        if (log := context.params["log"]) is not None:
            if options["table"]:
                raise ConfigurationError("Give --log or --table, not both.")
            options |= {"table": log, "log": True}
        return {"feed": options}
    given = {
        name: value
        for name, value in options.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    return {
        name: values(*groups, given={"path": name, **feed})
        | {"log": feed.get("log", False)}
        | given
        for name, feed in context.obj.feeds.items()
    }


def _choices(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of how a feed is served, without its path."""
    return {name: options[name] for name in keys(mount_options) if name != "path"}


def _open(options: Mapping[str, Any], *, is_trimmed: bool) -> BoundFeed:
    """Open a feed and read one event, so that the operator sees an error before consumers do."""
    given = {name: options[name] for name in ("log", *keys(publish_options))}
    if given["archive"] and not (given["database"] or given["table"]):
        return open_archive(**given)
    # A feed without the mark would not know what its upkeep trims.
    feed = open_feed(must_have_mark=is_trimmed, **given)
    try:
        feed.read(0, FIRST, 1)
    except FeedFailure as error:
        reason = getattr(error.__cause__, "orig", None)
        raise ConfigurationError(f"{error} {reason or ''}".strip()) from error
    except Unavailable:
        pass  # The feed waits for an open writer.
    return feed


def _imported(place: str) -> Any:
    """Return what a module has by a name."""
    sys.path.insert(0, "")  # a script of its own begins with the folder of the script
    try:
        made = import_from_string(place)
    except ImportFromStringError as error:
        raise ConfigurationError(str(error)) from None
    if not isinstance(made, Mapping) and not callable(made):
        raise ConfigurationError(f"{place} is neither a mapping of feeds nor an application.")
    return made


def _path(option: str, path: str) -> str:
    if set(path) & set("{}"):
        raise ConfigurationError(f"--{option} may not have parameters in braces.", option)
    return f"/{path.strip('/')}"


def _metrics(
    path: str, hook: Callable[[Request], Awaitable[object]] | None
) -> tuple[Observer, Callable[[BoundFeed, str], None], list[Route]]:
    """Return what measures feeds and their horizons, and the route that shows it to readers."""
    require("prometheus_client", extra="prometheus", user="--metrics")
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest  # noqa: PLC0415 - of another extra
    from prometheus_client.multiprocess import MultiProcessCollector  # noqa: PLC0415 - of another extra

    from zeroeventhub.telemetry import PrometheusPublisher  # noqa: PLC0415 - of another extra
    from zeroeventhub.telemetry.metrics import HORIZON_METRICS  # noqa: PLC0415 - of another extra
    from zeroeventhub.telemetry.prometheus import Gauges  # noqa: PLC0415 - of another extra
    from zeroeventhub.telemetry.publishers import HorizonGauges  # noqa: PLC0415 - of another extra

    registry = CollectorRegistry()
    observer = PrometheusPublisher(registry)
    observe_horizon: Callable[[BoundFeed, str], None] = observer.observe_horizon
    if _MEASURED in os.environ:
        registry, horizons = CollectorRegistry(), HorizonGauges()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call] # it has no types
        registry.register(Gauges(HORIZON_METRICS, horizons.collect))
        observe_horizon = horizons.add

    async def show(request: Request) -> Response:
        if hook is not None:
            try:
                await hook(request)
            except Unauthorized as error:
                challenge = {"WWW-Authenticate": error.challenge}
                raise HTTPException(error.status, error.message, challenge) from None
        text = await run_in_threadpool(generate_latest, registry)  # it reads the horizons
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return observer, observe_horizon, [Route(_path("metrics", path), show)]
