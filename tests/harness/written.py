"""A log over HTTP that tests append to, and what happens to the requests before they arrive."""

import math
from contextlib import contextmanager

from starlette.middleware import Middleware
from starlette.responses import Response

from harness.appended import made
from harness.readers import mounted


class Requests:
    """Count the requests that append, and answer some of them in the place of the log."""

    def __init__(self):
        self.count = 0
        self.refused = 0
        """How many of the next requests are answered with 503."""
        self.garbled = 0
        """How many of the next answers of the log arrive as other bytes."""
        self.largest = math.inf
        """Bytes of a request at most; larger ones are answered with 413, as by a proxy."""

    def middleware(self, app):
        async def passing(scope, receive, send):
            if scope.get("method") == "POST":
                self.count += 1
                if self.refused:
                    self.refused -= 1
                    await Response(status_code=503)(scope, receive, send)
                    return
                if self.garbled:
                    self.garbled -= 1
                    await app(scope, receive, garbling(send))
                    return
                if int(dict(scope["headers"])[b"content-length"]) > self.largest:
                    await Response(status_code=413)(scope, receive, send)
                    return
            await app(scope, receive, send)

        return passing


def garbling(send):
    """Return what sends an answer with question marks in place of its body."""

    async def garbled(message):
        await send(message | {"body": b"?" * len(message.get("body", b""))})

    return garbled


@contextmanager
def writable(engine, **options):
    """Serve a log of eight partitions; yield it, its URL, and the requests to it."""
    log, requests = made(engine, append=True), Requests()
    with mounted(
        log.feed(), engine, middleware=[Middleware(requests.middleware)], **options
    ) as url:
        yield log, url, requests
