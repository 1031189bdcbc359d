"""Pages to bytes: the line format of ZeroEventHub v1 and FeedAPI v2."""

from collections.abc import Collection

import msgspec

from zeroeventhub.lines import lines_of, one_line
from zeroeventhub.protocol import Page

__all__ = ["MEDIA_TYPE", "encode_page", "encode_page_v1", "parts_of"]

MEDIA_TYPE = "application/x-ndjson"

_encode = msgspec.json.encode


def encode_page(page: Page) -> bytes:
    """Encode a page as FeedAPI v2 has it (Events endpoint, Response)."""
    return b"%b{%b}\n" % (lines_of(page.events), _checkpoint(page))


def parts_of(body: bytes) -> tuple[bytes, bytes]:
    """Return the lines of a page's events, and its checkpoint.

    Args:
        body: what `encode_page` has made.
    """
    start = body.rfind(b"\n", 0, -1) + 1  # of the last line
    return body[:start], body[start:-1]


def _checkpoint(page: Page) -> bytes:
    flags = b',"caughtUp":true' if page.caught_up else b""
    flags += b',"stopReached":true' if page.stop_reached else b""
    return b'"cursor":%b%b' % (_encode(page.cursor), flags)


def encode_page_v1(partition: int, page: Page, headers: Collection[str]) -> bytes:
    """Encode a page as ZeroEventHub v1 has it (Response).

    Args:
        partition: the partition that the page belongs to.
        page: its events and its checkpoint.
        headers: names of the headers to send; `_all` sends all.
    """
    prefix = b'{"partition":%d,' % partition
    lines = []
    for event in page.events:
        chosen = {
            name: value
            for name, value in event.headers.items()
            if name in headers or "_all" in headers
        }
        part = b'"headers":%b,' % _encode(chosen) if chosen else b""
        lines.append(b'%b%b"data":%b}\n' % (prefix, part, one_line(event.raw)))
    lines.append(b'%b"cursor":%b}\n' % (prefix, _encode(page.cursor)))
    return b"".join(lines)
