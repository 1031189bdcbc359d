"""The events of a range that lie in files, which are read past the feed's publisher."""

from collections.abc import Generator
from dataclasses import replace

import pyarrow as pa

from zeroeventhub.arrow.arrow_page import ArrowPage, batch_of
from zeroeventhub.errors import Gone, ProtocolError, TokenChanged, TransientError, Unavailable
from zeroeventhub.protocol import SegmentPart, Segments
from zeroeventhub.spark.connection import Connection
from zeroeventhub.spark.offsets import Range
from zeroeventhub.spark.range_page import RangePage, events_of
from zeroeventhub.spark.segment_file import read_part

__all__ = ["SegmentReader"]


class SegmentReader:
    """Read ranges as far as they lie in files.

    Args:
        connection: to the feed.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def read(self, one: Range) -> Generator[tuple[RangePage, Range], None, Range]:
        """Yield pages, and what is left of the range behind each; return what is not in files.

        Raises:
            TransientError: the feed or whoever has the files did not answer, as often as they
                were asked.
            ZeroEventHubError: the feed refused, or a file is not of its form.
        """
        patience, done = self._connection.patience(), 0
        while (found := self._segments(one, is_begun=done > 0)).parts:
            try:
                for part in found.parts:
                    http = self._connection.client_for(part.url)
                    for last, data in read_part(part, one.partition, done, http):
                        patience.failed, done = 0, last
                        yield _page(one, part, data), one
                    one, done = replace(one, start=part.cursor), 0
                    yield _page(one, part), one
            except TransientError as error:
                # The URL may be too old by now, or its file replaced by another one: ask for it.
                self._connection.wait_out(patience, error)
        return one

    def _segments(self, one: Range, *, is_begun: bool) -> Segments:
        try:
            found = self._connection.ask(
                lambda client: client.segments(one.partition, one.start, stop=one.stop)
            )
        except Gone:
            # Its pages are asked for next, and whoever does knows what becomes of that.
            return Segments((), one.start)
        except TokenChanged as error:
            if not is_begun:
                raise
            # What was read of a file is known by a position, which a cursor elsewhere is not.
            raise Unavailable(
                "The feed's partitions have changed while a file was read: read again."
            ) from error
        if one.start in {part.cursor for part in found.parts}:
            raise ProtocolError("A file that the feed names ends where it begins.")
        return found


def _page(one: Range, part: SegmentPart, data: pa.StringArray | None = None) -> RangePage:
    """Return a page; without events, it says that those of a part have all been read."""
    batches = [batch_of(data)] if data is not None and len(data) else []
    page = ArrowPage(batches, part.cursor)
    return RangePage(one.partition, page, events_of(page), is_filtered=False)
