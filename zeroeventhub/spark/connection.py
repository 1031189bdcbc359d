"""How the source reaches a feed, and what it logs of that."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import parse_qsl, urlsplit

import httpx

from zeroeventhub.client import Client
from zeroeventhub.consumer.steps import Pause, RetryBudget
from zeroeventhub.errors import (
    ConfigurationError,
    ProtocolError,
    TransientError,
    Unauthorized,
    printable,
)
from zeroeventhub.settings import Limits
from zeroeventhub.spark.options import Options, origin_of

__all__ = [
    "Connection",
    "log",
    "speak",
]

log = logging.getLogger("zeroeventhub.spark")


def speak() -> None:
    """Log to standard error, which Spark keeps, unless a handler is installed."""
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)


_Answer = TypeVar("_Answer")

_GIVE_CREDENTIALS = (
    " Name the credentials that the feed's owner gave you by the option bearerTokenFile, "
    "bearerTokenEnv, headersFile or headersEnv."
)

_SIGNATURES = {"x-amz-signature", "x-goog-signature", "sig"}
"""Parameters of a URL that an object store has signed."""

_LIMITS = Limits(page_bytes=64 * 1024 * 1024)


class Connection:
    """Send requests to a feed, and repeat those that fail for a while.

    Args:
        options: which one, and how.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._files: dict[bool, httpx.Client] = {}
        self._open()

    @classmethod
    @contextmanager
    def to(cls, options: Options) -> Iterator["Connection"]:
        """Open a connection for as long as it is needed."""
        connection = cls(options)
        try:
            yield connection
        finally:
            connection.close()

    def ask(self, question: Callable[[Client], _Answer]) -> _Answer:
        """Ask until there is an answer.

        Args:
            question: asks a client for it, and may be put several times.

        Raises:
            TransientError: the last attempt ended in it.
            ZeroEventHubError: the feed refused.
        """
        patience = self.patience()
        while True:
            try:
                return question(self._client)
            except TransientError as error:
                self.wait_out(patience, error)
            except Unauthorized as error:
                # The token in the file may be a newer one by now.
                if self._options.credentials.headers() == self._headers:
                    raise Unauthorized(error.message, advice=_GIVE_CREDENTIALS) from None
                self.close()
                self._open()

    def patience(self) -> RetryBudget:
        """Count failures in a row, up to the attempts that the options allow."""
        return RetryBudget(self._options.attempts, stopped=lambda: False)

    def wait_out(self, patience: RetryBudget, error: Exception) -> None:
        """Pause before another attempt.

        Raises:
            Exception: the error itself, if it was the last attempt.
        """
        for step in patience.wait_out(error):
            if isinstance(step, Pause):
                log.warning("%s Asking again in %.1f s.", error, step.seconds)
                time.sleep(step.seconds)

    def client_for(self, url: str) -> httpx.Client:
        """Return the client that fetches a file which the feed names.

        It sends none of the feed's headers, and shows the feed's certificate to the feed's origin
        alone.

        Raises:
            ConfigurationError: the options do not allow files from there.
            ProtocolError: it is no URL.
        """
        try:
            origin, is_own = origin_of(url), origin_of(url) == origin_of(self._options.url)
        except ValueError:
            raise ProtocolError("The feed names a file by what is no URL.") from None
        if not (is_own or _is_signed(url) or origin in self._options.segment_origins):
            raise ConfigurationError(
                f"The feed names files of {printable(origin, longest=200)}: allow them by the "
                "option segmentOrigins, or read its pages instead, by readSegments false."
            )
        if is_own not in self._files:
            self._files[is_own] = self._options.credentials.open({}, with_certificate=is_own)
        return self._files[is_own]

    def close(self) -> None:
        """Close the connection; it may be closed already."""
        self._http.close()
        for http in self._files.values():
            http.close()
        self._files.clear()

    def _open(self) -> None:
        self._headers = self._options.credentials.headers()
        self._http = self._options.credentials.open(self._headers)
        self._client = Client(
            self._options.url,
            self._http,
            partitions=self._options.v1_partitions,
            limits=_LIMITS,
        )


def _is_signed(url: str) -> bool:
    """Tell whether a URL lets its bearer read an object of a store, by HTTPS."""
    parts = urlsplit(url)
    names = {name.lower() for name, _ in parse_qsl(parts.query)}
    return parts.scheme == "https" and not _SIGNATURES.isdisjoint(names)
