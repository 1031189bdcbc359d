"""The feeds of the benchmarks, and their archives."""

from pathlib import Path

from sqlalchemy import Engine, Table

from zeroeventhub import Retention, TableFeed
from zeroeventhub.archive import Archive
from zeroeventhub.publisher.bound_feed import BoundFeed
from zeroeventhub.publisher.sealing import Sealed


def feed_of(
    table: Table, *, form: str = "jsonb", archive: str | None = None, cache: str | None = None
) -> TableFeed:
    """Return the feed of a table.

    Args:
        table: of events.
        form: of their data.
        archive: the folder of the feed's archive, whose files are shared; None for no archive.
        cache: the folder of what is fetched of it.
    """
    if archive is None:
        return TableFeed(table, data="data", cloudevents=form == "envelope")
    return TableFeed(
        table,
        data="data",
        retention=Retention(),
        archive=Archive(archive, cache=cache, shared=Path(archive).as_uri()),
    )


def seal(engine: Engine, table: Table, archive: str) -> tuple[BoundFeed, Sealed]:
    """Write all events of a table into an archive; return its feed, and what was sealed."""
    source = feed_of(table, archive=archive)
    with engine.begin() as connection:
        source.install(connection)
    feed = source.bind(engine)
    return feed, feed.seal()
