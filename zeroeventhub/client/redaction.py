"""Keep secrets of a feed's address and of the caller's httpx client out of error texts and logs."""

import logging
from base64 import b64encode
from contextvars import ContextVar
from urllib.parse import quote, quote_plus

import httpx

from zeroeventhub.client.connection_pool import ConnectionPool
from zeroeventhub.errors import ConfigurationError

HIDDEN = "[hidden]"

SHORTEST = 4
"""Least number of characters of a secret: anything shorter would be found in any text."""

requested: ContextVar["tuple[Redaction, str] | None"] = ContextVar("requested", default=None)
"""The secrets and the address of the present request, while httpx and its dependencies may log."""

_HARMLESS = {"accept", "accept-encoding", "connection", "content-type", "host", "user-agent"}


def feed_url(text: httpx.URL | str) -> httpx.URL:
    """Read the address of a feed; an error does not repeat it, as any part may be a password."""
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, UnicodeError):
        raise ConfigurationError("This is not a URL.") from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise ConfigurationError("A feed's URL starts with http:// or https://.")
    # A socket connects to the rest of a division by 65,536, which may be another server's port.
    if not 0 <= (url.port or 0) < 2**16:
        raise ConfigurationError("The port in a feed's URL is a number below 65,536.")
    return url


def without_secrets(url: httpx.URL) -> str:
    """Return a URL without the parts that may be secret."""
    return str(url.copy_with(userinfo=b"", query=None, fragment=None))


def safe_text(error: BaseException) -> str:
    """Return the text of an error, or its class if the text may repeat what was sent."""
    is_safe = isinstance(error, httpx.NetworkError | httpx.TimeoutException | TimeoutError)
    return (is_safe and str(error)) or type(error).__name__


class Redaction:
    """Hide the secrets of a feed's address and of the httpx client that requests it."""

    def __init__(
        self, url: httpx.URL, http: httpx.Client | httpx.AsyncClient | ConnectionPool
    ) -> None:
        self._url = url
        self._http = http
        for logger in _LOGGERS:
            logger.addFilter(_rewrite)

    def text(self, text: str) -> str:
        """Hide secrets in a text that another package or server wrote."""
        for secret in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return text

    def address(self, url: httpx.URL, expected: str) -> httpx.URL | str:
        """Write a URL for a log, without parameters that the caller's client added."""
        return url if url == expected and not self._url.query else without_secrets(url)

    def _secrets(self) -> set[str]:
        values = [value for _, value in self._url.params.multi_items()]
        values += [part.rpartition("=")[2] for part in self._url.query.decode().split("&")]
        values += [self._url.password or self._url.username, self._url.userinfo.decode()]
        values.append(b64encode(f"{self._url.username}:{self._url.password}".encode()).decode())
        if not isinstance(self._http, ConnectionPool):
            values += [value for _, value in self._http.params.multi_items()]
            values += [cookie.value or "" for cookie in self._http.cookies.jar]
        for name, value in self._http.headers.multi_items():
            if name not in _HARMLESS:
                values += [value, value.rpartition(" ")[2]]
        forms = {
            form for value in values for form in (value, quote_plus(value), quote(value, safe=""))
        }
        return {form for form in forms if len(form) >= SHORTEST}


def _rewrite(record: logging.LogRecord) -> bool:
    """Hide secrets in a log record that was made during a request to a feed; keep every record."""
    if (request := requested.get()) is None:
        return True
    redaction, expected = request
    if isinstance(record.args, tuple):
        record.args = tuple(
            redaction.address(value, expected) if isinstance(value, httpx.URL) else value
            for value in record.args
        )
    message = record.getMessage()
    hidden = redaction.text(message)
    if hidden != message:
        record.msg, record.args = hidden, ()
    return True


_LOGGERS = [
    logging.getLogger(name)
    for name in (
        "httpx",
        "httpcore.connection",
        "httpcore.http11",
        "httpcore.http2",
        "httpcore.proxy",
        "httpcore.socks",
        "hpack.hpack",
        "hpack.table",
    )
]
