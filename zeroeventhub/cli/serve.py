"""`zeroeventhub serve`: publish a table without writing code."""

from typing import Any

import click
from sqlalchemy import JSON, Engine, Table, func, select, type_coerce
from starlette.applications import Starlette

from zeroeventhub.cli.options import open_database, reflect, table_options
from zeroeventhub.cli.web import run_web
from zeroeventhub.errors import ConfigurationError, FeedFailure, Unavailable
from zeroeventhub.protocol import FIRST, FeedInfo
from zeroeventhub.publisher import TableFeed
from zeroeventhub.publisher.mapping import resolve
from zeroeventhub.server import feed_routes

__all__ = ["serve"]


@click.command()
@table_options
@click.option(
    "--partitions",
    type=click.IntRange(1),
    metavar="N",
    help="How many partitions; by default the column's largest value + 1.",
)
@click.option("--data", metavar="COL", help="The column that holds an event's data as JSON.")
@click.option("--columns", metavar="a,b,c", help="The columns that make an event's data.")
@click.option("--type", "type_", metavar="COL", help="The column of the event's type.")
@click.option("--key", metavar="COL", help="The column of the event's key.")
@click.option("--id", "id_", metavar="COL", help="The column of the event's id.")
@click.option("--cloudevents", is_flag=True, help="Wrap events in a CloudEvents envelope.")
@click.option(
    "--mutable", is_flag=True, help="Rows are changed or deleted, so cursors cannot be checked."
)
@click.option("--http-feed", is_flag=True, help="Answer clients of HTTP Feeds as well.")
@click.option("--server-sent-events", is_flag=True, help="Stream server-sent events as well.")
@click.option("--path", default="/events", show_default=True, help="Where the feed is mounted.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8080, show_default=True, type=click.IntRange(0, 65535))
def serve(
    *,
    database: str,
    table: str,
    position: str | None,
    partition: str | None,
    partitions: int | None,
    data: str | None,
    columns: str | None,
    type_: str | None,
    key: str | None,
    id_: str | None,
    time: str | None,
    cloudevents: bool,
    ordering: str | None,
    append_only: bool,
    mutable: bool,
    http_feed: bool,
    server_sent_events: bool,
    path: str,
    host: str,
    port: int,
) -> None:
    """Publish a table as a feed.

    Without --data and --columns an event's data is all columns of its row.
    """
    if data and columns:
        raise ConfigurationError("An event's data is --data or --columns, not both.")
    if set(path) & set("{}"):
        raise ConfigurationError("--path is a path as it is; it has no parameters in braces.")
    if partitions and not partition:
        raise ConfigurationError("--partitions needs --partition, the column to read it from.")
    engine = open_database(database, must_exist=True)
    events = reflect(engine, table)
    if partition and not partitions:
        partitions = _count_partitions(engine, events, partition)
    feed = TableFeed(
        events,
        position=position,
        partition=partition,
        partitions=partitions,
        data=_data(events, data, columns),
        type=type_,
        key=key,
        id=id_,
        time=time,
        cloudevents=cloudevents,
        ordering=ordering,
        append_only=append_only,
        mutable=mutable,
    )
    bound: Any = feed.bind(engine)
    _try(bound)
    # Everybody may read what is served here, so every cache may keep it.
    routes = feed_routes(
        path,
        bound,
        shared_cache=True,
        http_feed=http_feed,
        server_sent_events=server_sent_events,
    )
    application = Starlette(routes=routes)
    mounted = path.strip("/")
    info = bound.info()
    run_web(application, host, port, lambda url: _announce(info, f"{url}/{mounted}".rstrip("/")))


def _count_partitions(engine: Engine, events: Table, partition: str) -> int:
    with engine.connect() as connection:
        largest = connection.scalar(select(func.max(resolve(events, partition))))
    if not isinstance(largest, int | None):
        raise ConfigurationError(f"{partition} does not hold whole numbers from 0.")
    return max(largest or 0, 0) + 1


def _data(events: Table, data: str | None, columns: str | None) -> Any:
    if columns:
        return [name.strip() for name in columns.split(",")]
    # A column named here holds JSON, whatever type it was declared with.
    return data and type_coerce(resolve(events, data), JSON).label(data)


def _try(feed: Any) -> None:
    """Read one event, so that what is wrong is said now and not to the first consumer."""
    try:
        feed.read(0, FIRST, 1)
    except FeedFailure as error:
        reason = getattr(error.__cause__, "orig", None)
        raise ConfigurationError(f"{error} {reason or ''}".strip()) from error
    except Unavailable:
        return  # a writer is at work; the feed will wait for it


def _announce(info: FeedInfo, url: str) -> None:
    query = f"token={info.token}&partition={info.partitions[0].id}&cursor={FIRST}"
    click.echo(f"Feed: {url}")
    click.echo(f"Try:  curl '{url}/events?{query}&pagesizehint=3'")
