"""Where pages are made into other forms: not where they keep others waiting."""

import threading

import pytest
from starlette.requests import Request

from zeroeventhub import Event, FeedInfo, Page
from zeroeventhub.arrow import MEDIA_TYPE
from zeroeventhub.capacity import Capacity
from zeroeventhub.server.content_coding import ContentCoding
from zeroeventhub.server.kept_pages import EncodedPage
from zeroeventhub.server.page_forms import PageForms
from zeroeventhub.server.sending import Sending
from zeroeventhub.server.source import Source


class OwnFeed:
    """A feed that is never read."""

    def info(self):
        return FeedInfo.of(1)

    def read(self, partition, cursor, limit):
        return Page([Event(b"1")], "a")


def asking(*headers):
    """A request with these headers."""
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers}
    return Request(scope)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("header", "size", "apart"),
    [
        ((b"accept", MEDIA_TYPE.encode()), 10_000, False),
        ((b"accept", MEDIA_TYPE.encode()), 1_000_000, True),
        ((b"accept-encoding", b"gzip"), 10_000, False),
        ((b"accept-encoding", b"gzip"), 100_000, True),
    ],
    ids=["little Arrow", "much Arrow", "little to pack", "much to pack"],
)
async def test_large_pages_are_made_in_a_thread(header, size, apart):
    """What takes its time is done beside the event loop, which goes on to answer others."""
    places = []

    def made(body):
        places.append(threading.get_ident())
        return body

    capacity = Capacity()
    source = Source(OwnFeed(), None, capacity, Sending(capacity), lambda _: None)
    forms = PageForms(source, made, [ContentCoding("gzip", "gzip", made)])
    page = EncodedPage(b"x" * size, None, 1, "a", full=False)
    response = await forms.response(asking(header), page, shared=False)
    assert response.body == page.body
    assert [place != threading.get_ident() for place in places] == [apart]


@pytest.mark.anyio
async def test_page_that_the_client_has_is_not_packed():
    """Who holds a page in a coding is told so without any work."""
    capacity = Capacity()
    source = Source(OwnFeed(), None, capacity, Sending(capacity), lambda _: None)
    forms = PageForms(source, None, [ContentCoding("gzip", "gzip-1", pytest.fail)])
    page = EncodedPage(b"x" * 10_000, '"tag"', 1, "a", full=True)
    request = asking((b"accept-encoding", b"gzip"), (b"if-none-match", b'"tag-gzip-1"'))
    response = await forms.response(request, page, shared=False)
    assert (response.status_code, response.headers["etag"]) == (304, '"tag-gzip-1"')
    assert "content-encoding" not in response.headers
