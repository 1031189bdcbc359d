"""Append the events of a file to a log."""

from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from functools import partial
from typing import BinaryIO

import click

from zeroeventhub.cli.options import as_json, feed_options
from zeroeventhub.cli.output import Meter, report
from zeroeventhub.client import Client
from zeroeventhub.client.appender import BATCH_BYTES, OF_AN_EVENT
from zeroeventhub.errors import BadRequest, ConfigurationError, Conflict, IdReused, TooLarge
from zeroeventhub.new_events import NewEvent
from zeroeventhub.protocol import LARGEST_EVENT_BYTES
from zeroeventhub.wire.new_events import decode_event

BATCH = 1_000
"""Events of a batch: the same for every run, because a producer's runs count the same batches."""

LONGEST_LINE = LARGEST_EVENT_BYTES + 16 * 1024
"""Bytes of a line at most: those of its data, and room for the rest."""

_Batch = Sequence[tuple[int, NewEvent]]
"""Events with the numbers of their lines."""


@click.command()
@feed_options
@click.argument("file", type=click.File("rb"), default="-")
@click.option(
    "--producer",
    metavar="NAME",
    help="Let the log count the whole batches of FILE under this name, and skip those that it has.",
)
@as_json
def append(*, client: Client, file: BinaryIO, producer: str | None, as_json: bool) -> None:
    """Append the events of FILE to the log of the feed at URL.

    Without FILE the command reads standard input. Each line is an event: {"id": "1", "type":
    "paid", "data": {"amount": 5}, "key": "ada"}; `key` may be left out.

    The command ends at the first event that the log refuses, and names its line; all lines before
    it are appended. You can run the same command again: the log stores no id twice, unless it was
    trimmed or compacted meanwhile. With --producer the command skips the whole batches, of up to
    1,000 lines, that the log has: use one name for one file. You may add lines at the end of the
    file.
    """
    stored = client.producer_sequence(producer) if producer else 0
    appended = skipped = sequence = 0
    with Meter("appended", _lines_in(file)) as meter:
        for batch, is_full in _batches(file):
            if producer is None or not is_full:
                # At the end of a file that grows, a batch is longer the next time.
                _append(client, batch)
            elif (sequence := sequence + 1) > stored:
                _append(client, batch, producer, sequence)
            else:
                if sequence == stored:
                    _expect_same(client, batch, producer, sequence)
                skipped += len(batch)
            appended += len(batch)
            meter.show(batch[-1][0])
    appended -= skipped
    if sequence < stored:
        raise ConfigurationError(_OTHER_FILE)
    report({"appended": appended, "skipped": skipped}, [], as_json=as_json)
    if not as_json:
        click.echo(f"Events appended: {appended:,}; skipped: {skipped:,}", err=True)


_OTHER_FILE = (
    "The log has batches of this producer that are not in the file: give each file a name of its "
    "own, or leave out --producer. If the log has only trimmed their events, append the lines "
    "after them as another file, since it would take these events again."
)


def _expect_same(client: Client, batch: _Batch, producer: str, sequence: int) -> None:
    """Refuse a file whose lines are not those that the producer has appended."""
    try:
        client.append([event for _, event in batch], producer=producer, sequence=sequence)
    except IdReused as error:
        raise ConfigurationError(_OTHER_FILE) from error


def _append(
    client: Client, batch: _Batch, producer: str | None = None, sequence: int | None = None
) -> None:
    """Append a batch; if the log refuses it, append what comes before the event that it refuses."""
    try:
        client.append([event for _, event in batch], producer=producer, sequence=sequence)
    except (Conflict, *OF_AN_EVENT) as error:
        if len(batch) == 1:
            error.args = (f"Line {batch[0][0]}: {error}",)
            raise
        middle = len(batch) // 2
        _append(client, batch[:middle])
        _append(client, batch[middle:])
        if sequence is not None:  # which the log does not have now
            raise


def _batches(file: BinaryIO) -> Iterator[tuple[_Batch, bool]]:
    """Divide a file into batches; say of each whether it is full, and so stays as it is."""
    batch: list[tuple[int, NewEvent]] = []
    size = 0
    for number, read in enumerate(iter(partial(file.readline, LONGEST_LINE), b""), 1):
        line = read.removeprefix(BOM_UTF8) if number == 1 else read
        if not line.strip():
            continue
        try:
            event = _event(line, number)
        except (BadRequest, TooLarge):
            if batch:
                yield batch, False
            raise
        if batch and size + len(line) > BATCH_BYTES:
            yield batch, True
            batch, size = [], 0
        batch.append((number, event))
        size += len(line)
        if len(batch) == BATCH:
            yield batch, True
            batch, size = [], 0
    if batch:
        yield batch, False


def _event(line: bytes, number: int) -> NewEvent:
    if len(line) == LONGEST_LINE:
        raise TooLarge(f"Line {number} is longer than {LONGEST_LINE:,} bytes.")
    return decode_event(line, number)


def _lines_in(file: BinaryIO) -> int | None:
    """Count the lines of a file; None for one that can be read only once."""
    if not file.seekable():
        return None
    start = file.tell()
    lines = sum(1 for _ in file)
    file.seek(start)
    return lines
