"""Bytes to pages, as they come: the line format of ZeroEventHub v1 and FeedAPI v2.

A line is an event (`data`), a checkpoint (`cursor`), both, or something newer that is passed
over. Lines end in byte 0x0A and in nothing else: U+2028 and U+0085 are data.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NoReturn

import msgspec

from zeroeventhub.errors import CutPage, PageTooLarge, ProtocolError
from zeroeventhub.ndjson.expecting import expect_cursor
from zeroeventhub.protocol import Event, Page

__all__ = ["PageDecoder"]

_WHITE_SPACE = b" \t\r"
"""What JSON allows between its parts and no line ends with."""


def _is_object(line: bytes) -> bool:
    """Tell whether bytes are a JSON object from its beginning to its end."""
    try:
        line.decode()
        msgspec.json.decode(line, type=_Object)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _is_utf_8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


class _Object(msgspec.Struct):
    """Any object: nothing of it is kept."""


class _Line(msgspec.Struct, rename="camel", gc=False):
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    cursor: str | None = None
    # Raw, because what is not a flag may be anything.
    caught_up: msgspec.Raw = msgspec.Raw()
    stop_reached: msgspec.Raw = msgspec.Raw()
    partition: str | int | None = None
    headers: dict[str, str] | None = None


class _DataAlone(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What most lines are: an event that says nothing else."""

    data: msgspec.Raw


_UNSET = msgspec.UNSET
_decode_line = msgspec.json.Decoder(_Line).decode
_decode_data_alone = msgspec.json.Decoder(_DataAlone).decode


class PageDecoder:
    """Collect the bytes of a response into a page.

    Feed it chunks as they come, then ask for the page once. Events after the last
    checkpoint are dropped: they will be sent again.

    Args:
        partition: the partition that was asked for.
        page_bytes: the longest page to take.
        page_events: the most events to take.
        line_bytes: the longest line to take, without its newline.
    """

    def __init__(
        self,
        partition: int,
        *,
        page_bytes: float = math.inf,
        page_events: float = math.inf,
        line_bytes: float = math.inf,
    ) -> None:
        self._partition = partition
        self._page_bytes = page_bytes
        self._page_events = page_events
        self._line_bytes = line_bytes
        self._length = 0
        self._rest = bytearray()
        self._settled: list[Event] = []
        self._tail: list[Event] = []
        self._checkpoint: _Line | None = None

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes.

        Raises:
            ProtocolError: a whole line is not one that the protocol allows.
            PageTooLarge: the page, or a line of it, is longer than it may be; what was read
                before that stands.
        """
        room = self._page_bytes - self._length
        self._length += len(chunk)
        if len(chunk) > room:
            chunk = chunk[: int(room)]
        end, newline, rest = chunk.rpartition(b"\n")
        if newline:
            text = bytes(self._rest) + end
            self._rest.clear()
            lines = text.split(b"\n")
            # No line of few bytes is too long, and few lines are not too many.
            few = len(text) <= self._line_bytes and self._events + len(lines) <= self._page_events
            checked = _is_utf_8(text)
            if few and checked:
                lines = lines[self._take_data(lines) :]
            self._take(lines if few else self._bounded(lines), checked=checked)
        self._rest += rest
        if len(self._rest) > self._line_bytes:
            self._refuse_line()
        if self._length > self._page_bytes:
            self._refuse_page(f"{self._page_bytes:,} bytes", "page_bytes")

    @property
    def _events(self) -> int:
        return len(self._settled) + len(self._tail)

    def _bounded(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Yield lines as they are taken, until one is too long or brings an event too many."""
        for line in lines:
            if len(line) > self._line_bytes:
                self._refuse_line()
            yield line
            if self._events > self._page_events:
                self._refuse_page(f"{self._page_events:,} events", "page_events")

    def _refuse_line(self) -> NoReturn:
        self._rest.clear()
        raise PageTooLarge(
            f"A line of the page is longer than {self._line_bytes:,} bytes: to read it, raise the "
            "client's Limits.line_bytes."
        )

    def _refuse_page(self, bound: str, name: str) -> NoReturn:
        raise PageTooLarge(
            f"The page has more than {bound}: ask for fewer events with `limit`, or raise the "
            f"client's Limits.{name}."
        )

    @property
    def has_checkpoint(self) -> bool:
        """Tell whether there is a page in what came so far."""
        return self._checkpoint is not None

    def page(self) -> Page:
        """Return the events up to the last checkpoint.

        Raises:
            CutPage: there was no checkpoint.
        """
        # A publisher may leave out the last newline; what was cut short is no whole object.
        rest = bytes(self._rest)
        if _is_object(rest):
            self._take([rest], checked=True)
        if self._checkpoint is None or self._checkpoint.cursor is None:
            raise CutPage("The page ended before its checkpoint; it has to be read again.")
        # Events behind it were cut off with the rest: they are there to be read.
        whole = not self._tail
        return Page(
            self._settled,
            self._checkpoint.cursor,
            caught_up=whole and bytes(self._checkpoint.caught_up) == b"true",
            stop_reached=bytes(self._checkpoint.stop_reached) == b"true",
        )

    def _take_data(self, lines: Iterable[bytes]) -> int:
        """Take lines of UTF-8 up to the first that is more than data; return how many they are.

        That is quicker than `_take`, which says what is wrong with the next one, or takes it.
        """
        before, append = len(self._tail), self._tail.append
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            for line in lines:
                append(Event(bytes(_decode_data_alone(line).data)))
        return len(self._tail) - before

    def _take(self, lines: Iterable[bytes], *, checked: bool) -> None:
        """Take whole lines.

        Args:
            lines: without their newlines.
            checked: whether all of them are known to be UTF-8.
        """
        for line in lines:
            try:
                if not checked:
                    line.decode()  # what is passed over unparsed must be UTF-8 as well
                parsed = _decode_line(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                if not line.strip(_WHITE_SPACE):
                    continue
                raise ProtocolError(
                    f"A line of the page is not of the protocol: {error}"
                ) from error
            data, cursor, partition = parsed.data, parsed.cursor, parsed.partition
            if data is _UNSET and not cursor:
                continue
            if partition is not None and str(partition) != str(self._partition):
                raise ProtocolError(
                    f"A line of partition {partition} came "
                    f"in a page of partition {self._partition}."
                )
            if data is not _UNSET:
                headers = parsed.headers
                event = Event(bytes(data), headers) if headers else Event(bytes(data))
                self._tail.append(event)
            if cursor:
                expect_cursor(cursor)
                self._settled += self._tail
                self._tail = []
                self._checkpoint = parsed
