"""Keep secrets of a feed's address and of the caller's httpx client out of error texts and logs."""

import logging
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from urllib.parse import quote, quote_plus

import httpx

__all__ = ["Redaction", "bare"]

HIDDEN = "[hidden]"

SHORTEST = 4
"""Characters of a secret, at least: anything shorter would be found in any text."""

_HARMLESS = {"accept", "accept-encoding", "connection", "content-type", "host", "user-agent"}


def bare(url: httpx.URL) -> str:
    """Write a URL without what may be secret in it."""
    return str(url.copy_with(userinfo=b"", query=None, fragment=None))


class Redaction:
    """Hide the secrets of a feed's address and of the client that requests it.

    Args:
        url: the feed's address with its user name and password.
        http: the caller's httpx client, which adds headers and parameters.
    """

    def __init__(self, url: httpx.URL, http: httpx.Client | httpx.AsyncClient) -> None:
        self._url = url
        self._http = http

    def text(self, text: str) -> str:
        """Hide secrets in a text of another origin."""
        for secret in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return text

    @contextmanager
    def asking(self, url: httpx.URL) -> Iterator[None]:
        """Hide secrets in what httpx and its dependencies log during a request.

        Args:
            url: the requested address.
        """
        for logger in _LOGGERS:
            logger.addFilter(_filter)
        former = _asking.set((self, url))
        try:
            yield
        finally:
            _asking.reset(former)

    def address(self, url: httpx.URL, asked: httpx.URL) -> httpx.URL | str:
        """Write a URL for a log: in full where all of its query is the protocol's."""
        # Parameters that the caller's client added may be secret.
        return url if url == asked and not self._url.query else bare(url)

    def _secrets(self) -> set[str]:
        values = [value for _, value in self._url.params.multi_items()]
        values += [value for _, value in self._http.params.multi_items()]
        values += [part.rpartition("=")[2] for part in self._url.query.decode().split("&")]
        values += [self._url.password or self._url.username, self._url.userinfo.decode()]
        values.append(b64encode(f"{self._url.username}:{self._url.password}".encode()).decode())
        values += [cookie.value or "" for cookie in self._http.cookies.jar]
        for name, value in self._http.headers.multi_items():
            if name not in _HARMLESS:
                values += [value, value.rpartition(" ")[2]]
        forms = {form(value) for value in values for form in (str, quote_plus, _quote)}
        return {form for form in forms if len(form) >= SHORTEST}


def _quote(value: str) -> str:
    return quote(value, safe="")


class _Filter(logging.Filter):
    """Rewrite log records about a feed's requests, and no others."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Hide secrets in a record that was made while a feed was asked."""
        if (asking := _asking.get()) is None:
            return True
        redaction, asked = asking
        if isinstance(record.args, tuple):
            record.args = tuple(
                redaction.address(value, asked) if isinstance(value, httpx.URL) else value
                for value in record.args
            )
        message = record.getMessage()
        hidden = redaction.text(message)
        if hidden != message:
            record.msg, record.args = hidden, ()
        return True


_asking: ContextVar[tuple[Redaction, httpx.URL] | None] = ContextVar("asking", default=None)
_filter = _Filter()
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
