"""`zeroeventhub console`: feeds and consumers in the browser."""

import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import click
import httpx
from starlette.applications import Starlette

from zeroeventhub.cli.options import TIMEOUT, help_option, host_option, http_options, port_option
from zeroeventhub.cli.serve import is_loopback, listen, named, origin, run
from zeroeventhub.cli.table_options import open_database
from zeroeventhub.client import AsyncClient
from zeroeventhub.client.connection_pool import open_httpx
from zeroeventhub.consumer.store.cursor_store import CursorStore
from zeroeventhub.errors import ConfigurationError, require
from zeroeventhub.server import everybody


@click.command()
@click.option("--feed", "urls", multiple=True, metavar="URL", help="Show this feed; repeatable.")
@http_options
@click.option(
    "--store",
    "databases",
    multiple=True,
    metavar="DATABASE_URL",
    help="Show the consumers of this database; repeatable.",
)
@host_option
@click.option(
    "--reached-as",
    "names",
    multiple=True,
    metavar="HOST",
    help="Also answer requests to this host name, such as that of a proxy; repeatable.",
)
@click.option(
    "--allow-changes",
    is_flag=True,
    help="Let people retry and discard dead letters, and move cursors.",
)
@port_option
@help_option
def console(
    *,
    urls: tuple[str, ...],
    headers: list[tuple[str, str]],
    partitions: int | None,
    databases: tuple[str, ...],
    host: str,
    names: tuple[str, ...],
    allow_changes: bool,
    port: int,
    help_url: str,
) -> None:
    """Show feeds and consumers in the browser.

    Everybody who can connect to the console sees all that the command can read. By default only
    users of this machine can connect. The command sends the headers to every feed.
    """
    require("jinja2", extra="console", user="zeroeventhub console")
    from zeroeventhub.console import console_routes  # noqa: PLC0415 - of another extra

    if not urls and not databases:
        raise ConfigurationError("Say what to show: --feed with a URL, or --store with a database.")
    if allow_changes and not is_loopback(host):
        raise ConfigurationError(
            "--allow-changes lets everybody who reaches the host change consumers: leave --host "
            "out, or mount console_routes with an authorize hook in an application of yours."
        )
    engines = [open_database(url, must_exist=True) for url in databases]
    stores = [CursorStore(engine) for engine in engines]
    for store, engine in zip(stores, engines, strict=True):
        with engine.connect() as connection:
            store.check_tables(connection)
    http = open_httpx(httpx.AsyncClient, headers=headers, timeout=TIMEOUT)
    feeds = [AsyncClient(url, http, partitions=partitions) for url in urls]
    routes = console_routes(
        "/",
        feeds=dict(zip(names_of(feed.address for feed in feeds), feeds, strict=True)),
        stores=dict(zip(names_of(str(one.url.database) for one in engines), stores, strict=True)),
        authorize=everybody,
        allow_changes=allow_changes,
        help_url=help_url,
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with http:
            yield

    guards = [named(host, *names)] if is_loopback(host) or names else []
    application = Starlette(routes=routes, middleware=guards, lifespan=lifespan)
    with listen(host, port) as listening:
        click.echo(f"Open: {origin(host, listening)}/")
        run(application, listening)


def names_of(places: Iterable[str]) -> list[str]:
    """Return a name for each place, from its last part that says something."""
    names: list[str] = []
    for place in places:
        words = re.findall(r"[A-Za-z0-9_-]+", re.sub(r"\.(db|sqlite3?)$", "", place))
        name = words[-1][:80] if words else "default"
        while name in names:
            name += "-2"
        names.append(name)
    return names
