"""Put a consumer's cursors elsewhere: all or none, after a question."""

import json
from collections.abc import Mapping

import click
from sqlalchemy import Engine

from zeroeventhub.cli.store import go_ahead
from zeroeventhub.cursors import CursorStore
from zeroeventhub.errors import ConfigurationError, printable
from zeroeventhub.protocol import FIRST
from zeroeventhub.spark.checkpoint import committed_offsets

__all__ = ["put", "stream_cursors"]


def put(
    engine: Engine,
    store: CursorStore,
    consumer: str,
    cursors: Mapping[int, str],
    *,
    yes: bool,
    as_json: bool,
) -> None:
    """Ask, put cursors elsewhere, and say so.

    Args:
        engine: the store's database.
        store: where the cursors are.
        consumer: the consumer's name.
        cursors: by partition.
        yes: do not ask.
        as_json: say it for machines.
    """
    before = _cursors(engine, store, consumer)
    lines = [
        f"  partition {number}: {printable(before.get(number, 'none'))} -> {printable(cursor)}"
        for number, cursor in sorted(cursors.items())
    ]
    go_ahead(
        f"Consumer {printable(consumer)} will go on elsewhere, so that events are repeated or left "
        "out:\n" + "\n".join(lines) + "\n",
        yes=yes,
    )
    with engine.begin() as connection:
        for number, cursor in sorted(cursors.items()):
            store.set(connection, consumer, number, cursor)
    if as_json:
        listed = [
            {"partition": number, "before": before.get(number), "cursor": cursor}
            for number, cursor in sorted(cursors.items())
        ]
        click.echo(json.dumps({"consumer": consumer, "partitions": listed}))
    else:
        click.echo("\n".join(line.strip() for line in lines))


def stream_cursors(
    engine: Engine, store: CursorStore, consumer: str, checkpoint: str, source: str | None
) -> dict[int, str]:
    """Return where a consumer goes on behind a stream of Spark, by partition.

    Partitions that the stream has not begun are left out: a consumer starts them by itself.

    Args:
        engine: the store's database.
        store: where the cursors are.
        consumer: the consumer's name.
        checkpoint: the folder of the stream's checkpoint.
        source: the stream's source that is the feed; None if it has one.

    Raises:
        ConfigurationError: the checkpoint does not say it, or the consumer has been where the
            stream has not.
    """
    offsets = committed_offsets(checkpoint, source)
    passed = {*offsets.cursors, *(one for line in offsets.cursor_from.values() for one in line)}
    before = _cursors(engine, store, consumer)
    if further := [one for one in before if one not in passed and before[one] != FIRST]:
        raise ConfigurationError(
            f"Consumer {printable(consumer)} has a cursor in partition {min(further)}, which the "
            "stream has not begun, and would leave out what is before that: let it start there "
            "again by `zeroeventhub cursors reset`, or take another name."
        )
    return dict(offsets.cursors)


def _cursors(engine: Engine, store: CursorStore, consumer: str) -> dict[int, str]:
    with engine.connect() as connection:
        return store.cursors(connection, consumer)
