"""The connection of Spark's tasks and driver to a feed, with credentials, and their log."""

import logging
from collections.abc import Callable
from typing import TypeVar

import httpx

from zeroeventhub.bulk.connection import LIMITS, Connection
from zeroeventhub.client import Client
from zeroeventhub.client.connection_pool import open_http
from zeroeventhub.errors import ConfigurationError, PageTooLarge, Unauthorized
from zeroeventhub.spark.options import Options

log = logging.getLogger("zeroeventhub.spark")


def log_to_stderr() -> None:
    """Log to standard error, which Spark keeps, unless a handler is installed."""
    library = logging.getLogger("zeroeventhub")
    if not library.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        library.addHandler(handler)
        library.setLevel(logging.INFO)


_Answer = TypeVar("_Answer")

_GIVE_CREDENTIALS = (
    " Set the option bearerTokenFile, bearerTokenEnv, headersFile or headersEnv to where the "
    "credentials are that the feed's owner gave you."
)

_LOWER_PAGE_SIZE = (
    f"A page of the feed has more than {LIMITS.page_bytes:,} bytes or {LIMITS.page_events:,} "
    "events: lower the option pageSize, which helps unless one event is that large."
)


class SparkConnection(Connection):
    """Send requests with the credentials that options name."""

    _options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(self._open(options), options)

    def request(self, call: Callable[[Client], _Answer]) -> _Answer:
        """Send a request, and again with a token that has replaced one the feed refuses."""
        while True:
            try:
                return super().request(call)
            except Unauthorized as error:
                # The token in the file may be a newer one by now.
                if self._options.credentials.headers() == self._headers:
                    raise Unauthorized(error.message, advice=_GIVE_CREDENTIALS) from None
                self.close()
                self._client = self._open(self._options)
            except PageTooLarge:
                raise PageTooLarge(_LOWER_PAGE_SIZE) from None
            except ConfigurationError as error:
                # Only for Spark is this number an option, beside another one of that name.
                message = str(error).replace("`partitions`", "the option v1Partitions")
                raise ConfigurationError(message) from None

    def close(self) -> None:
        """Close the connection; it may be closed already."""
        super().close()
        self._http.close()

    def _open(self, options: Options) -> Client:
        self._headers = options.credentials.headers()
        self._http = options.credentials.open(self._headers, open_http)
        return Client(options.url, self._http, partitions=options.v1_partitions, limits=LIMITS)

    def _open_files(self, *, is_own: bool) -> httpx.Client:
        return self._options.credentials.open({}, httpx.Client, with_certificate=is_own)
