"""A feed as HTTP Feeds has it: batches of CloudEvents behind an event's id."""

from collections.abc import Sequence

import msgspec
from starlette.responses import Response

from zeroeventhub.errors import FeedFailure
from zeroeventhub.protocol import FIRST, Event
from zeroeventhub.server.auth import Access, Principal
from zeroeventhub.server.request import FeedRequest, read_http_feed_request
from zeroeventhub.server.responses import FRESH
from zeroeventhub.server.source import Source
from zeroeventhub.server.view import View
from zeroeventhub.wire.lines import text_of

__all__ = ["HttpFeed"]

MEDIA_TYPE = "application/cloudevents-batch+json"


class HttpFeed:
    """Answer requests of clients that know HTTP Feeds.

    Args:
        source: the feed.
        access: knows who may read it.
    """

    def __init__(self, source: Source, access: Access) -> None:
        self._source = source
        self._access = access

    async def answer(self, request: FeedRequest, principal: Principal) -> Response:
        """Answer with the events behind the one that the client has (HTTP Feeds, Polling)."""
        wanted = read_http_feed_request(request.query_params)
        view = View(self._source, self._access, principal)
        info, partition = await view.only(wanted.partition)
        cursor = FIRST
        if wanted.last_event_id is not None:
            cursor = await view.cursor_of(wanted.last_event_id, partition)
        while True:
            page = await view.read_or_wait(
                info,
                partition,
                cursor,
                None,
                seconds=0.0 if request.method == "HEAD" else wanted.wait,
                request=request,
            )
            # A client without cursors cannot move on over what has been deleted.
            if page.events or page.caught_up or page.cursor == cursor:
                break
            cursor = page.cursor
        _expect_cloudevents(page.events[:1])
        request.events = len(page.events)
        body = b"[%b]\n" % text_of(page.events, b",\n")
        return Response(body, media_type=MEDIA_TYPE, headers=FRESH)


class _CloudEvent(msgspec.Struct):
    specversion: str
    id: str


def _expect_cloudevents(events: Sequence[Event]) -> None:
    for event in events:
        try:
            msgspec.json.decode(event.raw, type=_CloudEvent)
        except msgspec.DecodeError as error:
            raise FeedFailure(
                "An HTTP feed needs events that are CloudEvents; these are not. Give the TableFeed "
                "cloudevents=True."
            ) from error
