"""A receiver of webhooks that checks signatures, keeps what it took, and refuses when asked to."""

import base64
import threading
import time
from collections import Counter
from collections.abc import Callable

from standardwebhooks.webhooks import Webhook, WebhookVerificationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


class Receiver:
    """Take requests; `answer` may return another response than 204, given how often an id came.

    Attributes:
        taken: the ids and bodies of requests that were answered with success, in order.
        asked: how often each id came.
        headers: the headers of the last request.
        most: how many requests were in work at a time.
    """

    def __init__(
        self,
        answer: Callable[[str, int], Response | None] = lambda one, count: None,
        *,
        seconds: float = 0.0,
    ) -> None:
        self.taken: list[tuple[str, bytes]] = []
        self.asked: Counter[str] = Counter()
        self.headers: dict[str, str] = {}
        self.most = 0
        self._answer = answer
        self._seconds = seconds
        self._busy = 0
        self._lock = threading.Lock()
        self.application = Starlette(routes=[Route("/hook", self._take, methods=["POST"])])

    @property
    def ids(self) -> list[str]:
        """The ids that were taken, in order."""
        return [one for one, _ in self.taken]

    async def _take(self, request: Request) -> Response:
        body = await request.body()
        return await run_in_threadpool(self._judge, dict(request.headers), body)

    def _judge(self, headers: dict[str, str], body: bytes) -> Response:
        one = headers["webhook-id"]
        with self._lock:
            self.headers = headers
            self.asked[one] += 1
            self._busy += 1
            self.most = max(self.most, self._busy)
        time.sleep(self._seconds)
        try:
            Webhook(SECRET).verify(body, headers)
        except WebhookVerificationError:
            return Response(status_code=401)
        finally:
            with self._lock:
                self._busy -= 1
        response = self._answer(one, self.asked[one])
        if response is None:
            with self._lock:
                self.taken.append((one, body))
        return response or Response(status_code=204)
