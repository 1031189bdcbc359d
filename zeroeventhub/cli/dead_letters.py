"""`zeroeventhub dead-letters`: show events that could not be applied, retry or discard them."""

from collections.abc import Iterator

import click
from sqlalchemy import Connection, Engine

from zeroeventhub.cli.cursors import TIME_FORMAT, WIDTH, brief, consumer_options, expect_consumer
from zeroeventhub.cli.options import option_group, partition_option, yes_option
from zeroeventhub.cli.output import Answer, answering, confirm
from zeroeventhub.consumer.store.cursor_store import CursorStore
from zeroeventhub.consumer.store.dead_letters import DeadLetter
from zeroeventhub.errors import ConfigurationError, printable

_HIGHEST = 2**63 - 1
_ID = click.IntRange(0, _HIGHEST)

letters_options = option_group(
    consumer_options, click.argument("ids", metavar="[ID]...", nargs=-1, type=_ID)
)


@click.group("dead-letters")
def dead_letters() -> None:
    """Show, retry or discard events that a consumer set aside."""


@dead_letters.command("list")
@consumer_options
@partition_option
@click.option("--limit", type=click.IntRange(1, _HIGHEST), help="List at most this many.")
@answering
def list_(
    engine: Engine, store: CursorStore, *, consumer: str, partition: int | None, limit: int | None
) -> Answer:
    """List the dead letters of a consumer, the oldest first."""
    with engine.connect() as connection:
        expect_consumer(connection, store, consumer)
        letters = store.dead_letters.letters(connection, consumer, partition=partition, limit=limit)
    return [_described(letter) for letter in letters], map(_line, letters)


@dead_letters.command()
@consumer_options
@click.argument("id", type=_ID)
@answering
def show(engine: Engine, store: CursorStore, *, consumer: str, id: int) -> Answer:  # noqa: A002 - its name
    """Show a dead letter: its event, and the error of its handler."""
    with engine.connect() as connection:
        letter = store.dead_letters.get(connection, consumer, id)
    return _described(letter), _lines(letter)


@dead_letters.command()
@letters_options
@answering
def retry(engine: Engine, store: CursorStore, *, consumer: str, ids: tuple[int, ...]) -> Answer:
    """Let the consumer apply dead letters again.

    Without an ID the command marks all dead letters of the consumer. A letter may be held back
    because an earlier one of its key failed: the consumer applies it after the earlier one.
    """
    with engine.begin() as connection:
        for letter in _chosen(store, connection, consumer, ids):
            if letter.state == "held":
                raise ConfigurationError(
                    f"Dead letter {letter.id} is held back after an earlier one of its key, and is "
                    "applied after that: retry or discard the earlier one."
                )
        count = store.dead_letters.retry(connection, consumer, ids or None)
    line = (
        f"Dead letters marked: {count}. The running consumer applies them, or its next run. A "
        "letter waits while an earlier one of its key has failed."
    )
    return {"marked": count}, [line]


@dead_letters.command()
@letters_options
@yes_option
@answering
def discard(
    engine: Engine, store: CursorStore, *, consumer: str, ids: tuple[int, ...], yes: bool
) -> Answer:
    """Delete dead letters, so that they are never applied.

    Without an ID the command deletes all dead letters of the consumer. If it deletes a letter, and
    later letters of its key were held back, the consumer applies these.
    """
    with engine.connect() as connection:
        _chosen(store, connection, consumer, ids)
    which = f"dead letters {', '.join(map(str, ids))}" if ids else "all dead letters"
    confirm(f"Consumer {printable(consumer)} will never apply the events of {which}.", yes=yes)
    with engine.begin() as connection:
        count = store.dead_letters.discard(connection, consumer, ids or None)
    return {"discarded": count}, [f"Dead letters discarded: {count}"]


def _chosen(
    store: CursorStore, connection: Connection, consumer: str, ids: tuple[int, ...]
) -> list[DeadLetter]:
    """Return the letters of these ids; refuse an id that the consumer does not have."""
    expect_consumer(connection, store, consumer)
    return [store.dead_letters.get(connection, consumer, number) for number in ids]


def _line(letter: DeadLetter) -> str:
    state = {
        "failed": f"failed after {letter.tries} tries",
        "held": "held back",
        "retry": f"to be applied again after {letter.tries} tries",
    }
    parts = [f"{letter.id}", f"partition {letter.partition}"]
    if letter.key is not None:
        parts.append(f"key {printable(letter.key, longest=WIDTH)}")
    parts += [state[letter.state], f"{letter.created_at:{TIME_FORMAT}}"]
    if letter.error:
        parts.append(brief(letter.error))
    return "  ".join(parts)


def _lines(letter: DeadLetter) -> Iterator[str]:
    yield _line(letter)
    for name, value in sorted(letter.event.headers.items()):
        yield f"header {printable(name)}: {printable(value)}"
    yield printable(letter.event.raw.decode())
    if letter.traceback:
        yield printable(letter.traceback, keep="\n").removesuffix("\n")


def _described(letter: DeadLetter) -> dict[str, object]:
    """Describe a letter; the event is text, because JSON parsers may round its numbers."""
    event, headers = letter.event.raw.decode(), dict(letter.event.headers)
    return {**vars(letter), "event": event, "headers": headers}
