"""The connection of the source to a feed, with retries, and the source's log."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import parse_qsl, urlsplit

import httpx

from zeroeventhub.client import Client
from zeroeventhub.client.connection_pool import open_http
from zeroeventhub.consumer.steps import Pause, RetryBudget
from zeroeventhub.errors import (
    ConfigurationError,
    PageTooLarge,
    ProtocolError,
    TransientError,
    Unauthorized,
    printable,
)
from zeroeventhub.settings import Limits
from zeroeventhub.spark.options import Options, origin_of

log = logging.getLogger("zeroeventhub.spark")


def log_to_stderr() -> None:
    """Log to standard error, which Spark keeps, unless a handler is installed."""
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)


_Answer = TypeVar("_Answer")

_GIVE_CREDENTIALS = (
    " Set the option bearerTokenFile, bearerTokenEnv, headersFile or headersEnv to where the "
    "credentials are that the feed's owner gave you."
)

_SIGNATURES = {"x-amz-signature", "x-goog-signature", "sig"}
"""Query parameters that mark a URL as signed by an object store."""

_LIMITS = Limits(page_bytes=64 * 1024 * 1024)

_LOWER_PAGE_SIZE = (
    f"A page of the feed has more than {_LIMITS.page_bytes:,} bytes or {_LIMITS.page_events:,} "
    f"events, or an event more than {_LIMITS.line_bytes:,} bytes: lower the option pageSize, which "
    "helps unless an event is that large."
)


class Connection:
    """Send requests to a feed, and retry those that fail for a while."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._files: dict[bool, httpx.Client] = {}
        self._open()

    def request(self, call: Callable[[Client], _Answer]) -> _Answer:
        """Send a request, up to `attempts` times until it is answered."""
        budget = self.retry_budget()
        while True:
            try:
                return call(self._client)
            except TransientError as error:
                self.back_off(budget, error)
            except Unauthorized as error:
                # The token in the file may be a newer one by now.
                if self._options.credentials.headers() == self._headers:
                    raise Unauthorized(error.message, advice=_GIVE_CREDENTIALS) from None
                self.close()
                self._open()
            except PageTooLarge:
                raise PageTooLarge(_LOWER_PAGE_SIZE) from None
            except ConfigurationError as error:
                # Only for Spark is this number an option, beside another one of that name.
                message = str(error).replace("`partitions`", "the option v1Partitions")
                raise ConfigurationError(message) from None

    def retry_budget(self) -> RetryBudget:
        """Return a count of consecutive failures, limited by the option `attempts`."""
        return RetryBudget(self._options.attempts, stopped=lambda: False)

    def back_off(self, budget: RetryBudget, error: Exception) -> None:
        """Pause before another attempt; raise the error after the last one."""
        for step in budget.wait_out(error):
            if isinstance(step, Pause):
                log.warning("%s Retrying in %.1f s.", error, step.seconds)
                time.sleep(step.seconds)

    def client_for(self, url: str) -> httpx.Client:
        """Return the HTTP client for a file at a URL that the feed gave.

        It sends none of the feed's headers, and the client's certificate only to the feed's own
        origin.
        """
        try:
            origin, is_own = origin_of(url), origin_of(url) == origin_of(self._options.url)
        except ValueError:
            raise ProtocolError("The feed names a file by text that is not a URL.") from None
        if not (is_own or _is_signed(url) or origin in self._options.segment_origins):
            raise ConfigurationError(
                f"The feed names files of {printable(origin, longest=200)}: allow that origin by "
                "the option segmentOrigins, or set readSegments to false to read pages instead."
            )
        if is_own not in self._files:
            credentials = self._options.credentials
            self._files[is_own] = credentials.open({}, httpx.Client, with_certificate=is_own)
        return self._files[is_own]

    def close(self) -> None:
        """Close the connection; it may be closed already."""
        self._http.close()
        for http in self._files.values():
            http.close()
        self._files.clear()

    def _open(self) -> None:
        self._headers = self._options.credentials.headers()
        self._http = self._options.credentials.open(self._headers, open_http)
        self._client = Client(
            self._options.url, self._http, partitions=self._options.v1_partitions, limits=_LIMITS
        )


def _is_signed(url: str) -> bool:
    """Return whether a URL is signed by an object store, and uses HTTPS."""
    parts = urlsplit(url)
    names = {name.lower() for name, _ in parse_qsl(parts.query)}
    return parts.scheme == "https" and not _SIGNATURES.isdisjoint(names)
