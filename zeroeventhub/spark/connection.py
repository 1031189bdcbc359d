"""The feed as the driver or a task asks it: again where that may help, with fresh secrets."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import httpx

from zeroeventhub._follow import Pause
from zeroeventhub._follow.backoff import Patience
from zeroeventhub.client import Client
from zeroeventhub.errors import TransientError, Unauthorized
from zeroeventhub.limits import Limits
from zeroeventhub.spark.log import log
from zeroeventhub.spark.options import Options

__all__ = ["Connection"]

_Answer = TypeVar("_Answer")

_GIVE_CREDENTIALS = (
    " Name the credentials that the feed's owner gave you by the option bearerTokenFile, "
    "bearerTokenEnv, headersFile or headersEnv."
)

_LIMITS = Limits(page_bytes=64 * 1024 * 1024)


class Connection:
    """Ask a feed.

    Args:
        options: which one, and how.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._stranger: httpx.Client | None = None
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
                # The token may have been changed for another one where it lies.
                if self._options.credentials.headers() == self._headers:
                    raise Unauthorized(error.message, advice=_GIVE_CREDENTIALS) from None
                self.close()
                self._open()

    def patience(self) -> Patience:
        """Count failures in a row, up to the attempts that the options allow."""
        return Patience(self._options.attempts, stopped=lambda: False)

    def wait_out(self, patience: Patience, error: Exception) -> None:
        """Pause before another attempt.

        Raises:
            Exception: the error itself, if it was the last attempt.
        """
        for step in patience.wait_out(error):
            if isinstance(step, Pause):
                log.warning("%s Asking again in %.1f s.", error, step.seconds)
                time.sleep(step.seconds)

    @property
    def stranger(self) -> httpx.Client:
        """Return a client for others than the feed, which sends none of the headers."""
        if self._stranger is None:
            self._stranger = self._options.credentials.open({})
        return self._stranger

    def close(self) -> None:
        """Close the connection; it may be closed already."""
        self._http.close()
        if self._stranger is not None:
            self._stranger.close()
            self._stranger = None

    def _open(self) -> None:
        self._headers = self._options.credentials.headers()
        self._http = self._options.credentials.open(self._headers)
        self._client = Client(
            self._options.url,
            self._http,
            partitions=self._options.v1_partitions,
            limits=_LIMITS,
        )
