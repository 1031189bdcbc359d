"""The connection of a read to a feed, with retries, and the log of reads."""

import logging
from collections.abc import Callable
from threading import Event
from typing import TypeVar
from urllib.parse import parse_qsl, urlsplit

import httpx

from zeroeventhub.bulk.options import TIMEOUT, ReadOptions, origin_of
from zeroeventhub.client import Client
from zeroeventhub.client.connection_pool import ConnectionPool, open_httpx
from zeroeventhub.consumer.steps import Pause, RetryBudget
from zeroeventhub.errors import ConfigurationError, ProtocolError, TransientError, printable
from zeroeventhub.settings import Limits

log = logging.getLogger("zeroeventhub.bulk")

_Answer = TypeVar("_Answer")

_SIGNATURES = {"x-amz-signature", "x-goog-signature", "sig"}
"""Query parameters that mark a URL as signed by an object store."""

LIMITS = Limits(page_bytes=64 * 1024 * 1024, line_bytes=64 * 1024 * 1024)
"""Those of a client that reads in bulk: one event may fill a page."""


class Connection:
    """Send requests to a feed, and retry those that fail for a while.

    The client stays open. Once `over` is set, no request is tried again.
    """

    def __init__(self, client: Client, options: ReadOptions, *, over: Event | None = None) -> None:
        self._client = client
        self._options = options
        self._over = over or Event()
        self._files: dict[bool, httpx.Client] = {}

    def request(self, call: Callable[[Client], _Answer]) -> _Answer:
        """Send a request, up to `attempts` times until it is answered."""
        budget = self.retry_budget()
        while True:
            try:
                return call(self._client)
            except TransientError as error:
                self.back_off(budget, error)

    def retry_budget(self) -> RetryBudget:
        """Return a count of consecutive failures, limited by the option `attempts`."""
        return RetryBudget(self._options.attempts, self._over.is_set)

    def back_off(self, budget: RetryBudget, error: Exception) -> None:
        """Pause before another attempt; raise the error after the last one."""
        for step in budget.wait_out(error):
            if isinstance(step, Pause):
                # Its text alone: the error refers to frames, which a handler may keep for long.
                log.warning("%s Retrying in %.1f s.", str(error), step.seconds)
                self._over.wait(step.begin())

    def client_for(self, url: str) -> httpx.Client:
        """Return the HTTP client for a file at a URL that the feed gave.

        That of the feed's own origin may be the caller's, with a certificate: send it none of the
        headers that the feed gets.
        """
        try:
            origin, is_own = origin_of(url), origin_of(url) == origin_of(self._client.address)
        except ValueError:
            raise ProtocolError("The feed names a file by text that is not a URL.") from None
        if not (is_own or _is_signed(url) or origin in self._options.segment_origins):
            words = self._options.words
            raise ConfigurationError(
                f"The feed names files of {printable(origin, longest=200)}: allow that origin by "
                f"the option {words.segment_origins}, or set {words.read_segments} to false to "
                "read pages instead."
            )
        if is_own and isinstance(self._client.http, httpx.Client):
            return self._client.http
        if is_own not in self._files:
            self._files[is_own] = self._open_files(is_own=is_own)
        return self._files[is_own]

    def _open_files(self, *, is_own: bool) -> httpx.Client:
        """Open the HTTP client for files, at the feed's own origin or elsewhere."""
        pool = self._client.http
        trusts = pool.tls if is_own and isinstance(pool, ConnectionPool) else True
        return open_httpx(httpx.Client, timeout=TIMEOUT, verify=trusts)

    def close(self) -> None:
        """Close what was opened for files."""
        for http in self._files.values():
            http.close()
        self._files.clear()


def _is_signed(url: str) -> bool:
    """Return whether a URL is signed by an object store, and uses HTTPS."""
    parts = urlsplit(url)
    names = {name.lower() for name, _ in parse_qsl(parts.query)}
    return parts.scheme == "https" and not _SIGNATURES.isdisjoint(names)
