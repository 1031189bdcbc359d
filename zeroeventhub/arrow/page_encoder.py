"""Lines to Arrow: a page as a stream of record batches."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from zeroeventhub.arrow.arrow_page import ROWS
from zeroeventhub.errors import FeedFailure
from zeroeventhub.lines import BETWEEN_EVENTS
from zeroeventhub.ndjson import parts_of

__all__ = ["encode_page"]


def encode_page(lines: bytes) -> bytes:
    """Encode a page as an Arrow IPC stream: a batch of its events, and one of its checkpoint.

    Args:
        lines: the page as FeedAPI v2 has it.

    Raises:
        FeedFailure: an event is not UTF-8, or larger than Arrow takes.
    """
    events, checkpoint = parts_of(lines)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ROWS) as stream:
        if events:
            data = _split(events)
            stream.write_batch(pa.record_batch([data, _nothing(len(data))], schema=ROWS))
        last = [_nothing(1), pa.array([checkpoint], pa.string())]
        stream.write_batch(pa.record_batch(last, schema=ROWS))
    body: bytes = sink.getvalue().to_pybytes()
    return body


def _split(events: bytes) -> pa.StringArray:
    try:
        text = pa.array([events[len(b'{"data":') : -len(b"}\n")]], pa.string())
    except pa.ArrowException as error:
        raise FeedFailure(f"A page cannot be sent as Arrow: {error}") from error
    lines = pc.split_pattern(text, BETWEEN_EVENTS.decode()).values
    # As a reader of lines sees it: white space around a value is not of it.
    return pc.ascii_trim(lines, characters=" \t\r")


def _nothing(count: int) -> pa.StringArray:
    return pa.nulls(count, pa.string())
