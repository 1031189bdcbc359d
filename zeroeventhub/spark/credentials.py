"""What a feed wants to be shown, known by where it is to be found and never by itself.

Spark writes options into plans, logs and exceptions, and sends them to every executor. So options
name environment variables and files, which are read where a feed is asked.
"""

import json
import os
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import httpx

from zeroeventhub.errors import ConfigurationError

__all__ = ["Credentials"]

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t -~]*")
"""What a header may have (RFC 9110, 5.1 and 5.5), without what is not ASCII."""

_PATIENCE = httpx.Timeout(30.0, connect=10.0)


@dataclass(frozen=True)
class Credentials:
    """Name the places of secrets.

    Attributes:
        token_variable: the environment variable of a bearer token.
        token_file: the file of one; it is read again when the feed refuses it.
        headers_variable: the environment variable of headers, as a JSON object.
        headers_file: the file of headers.
        ca_file: the file of certificates to trust, in place of the system's.
        certificate_file: the file of the client's certificate.
        key_file: the file of its key, where that is another one.
        key_password_variable: the environment variable of the key's password.
    """

    OPTIONS: ClassVar[tuple[str, ...]] = (
        "bearerTokenEnv",
        "bearerTokenFile",
        "headersEnv",
        "headersFile",
        "tlsCaFile",
        "tlsCertificateFile",
        "tlsKeyFile",
        "tlsKeyPasswordEnv",
    )

    token_variable: str | None = None
    token_file: str | None = None
    headers_variable: str | None = None
    headers_file: str | None = None
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password_variable: str | None = None

    @classmethod
    def read(cls, options: Mapping[str, str]) -> "Credentials":
        """Read what options name.

        Raises:
            ConfigurationError: two of them name the same, or one needs another.
        """
        for one, other in (("bearerTokenEnv", "bearerTokenFile"), ("headersEnv", "headersFile")):
            if one in options and other in options:
                raise ConfigurationError(f"Give {one} or {other}, not both.")
        for one in ("tlsKeyFile", "tlsKeyPasswordEnv"):
            if one in options and "tlsCertificateFile" not in options:
                raise ConfigurationError(f"{one} is for the key of a tlsCertificateFile: give it.")
        return cls(*(options.get(name) for name in cls.OPTIONS))

    def headers(self) -> dict[str, str]:
        """Read the headers to send, on the machine that sends them.

        Raises:
            ConfigurationError: there is nothing at a place, or nothing that can be sent.
        """
        headers: dict[str, str] = {}
        if text := _found(self.headers_variable, self.headers_file, "headers"):
            headers |= _read_headers(text)
        if token := _found(self.token_variable, self.token_file, "bearerToken"):
            headers["Authorization"] = f"Bearer {token.strip()}"
        if not all(_NAME.fullmatch(name) and _VALUE.fullmatch(headers[name]) for name in headers):
            raise ConfigurationError(
                "A token or a header cannot be sent: HTTP takes names of letters, digits and "
                "hyphens, and values of one line of ASCII."
            )
        return headers

    def open(self, headers: Mapping[str, str], *, with_certificate: bool = True) -> httpx.Client:
        """Open an HTTP client, which is the caller's to close.

        Args:
            headers: what `headers` gave.
            with_certificate: whether to show the client's certificate.

        Raises:
            ConfigurationError: a certificate or a key cannot be read.
        """
        tls = self._tls(with_certificate=with_certificate) or _public_tls()
        return httpx.Client(headers=headers, verify=tls, timeout=_PATIENCE)

    def _tls(self, *, with_certificate: bool) -> ssl.SSLContext | None:
        if not (self.ca_file or (self.certificate_file and with_certificate)):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.certificate_file and with_certificate:
                password = _variable(self.key_password_variable, "tlsKeyPasswordEnv")
                # Without a password, OpenSSL would ask for it on the terminal.
                secret: str | Callable[[], str] = password or (lambda: "")
                context.load_cert_chain(self.certificate_file, self.key_file, secret)
        except (OSError, ValueError):
            raise ConfigurationError(
                "The files that tlsCaFile, tlsCertificateFile and tlsKeyFile name cannot be read "
                "on this machine as certificates and a key in PEM."
            ) from None
        return context


@cache
def _public_tls() -> ssl.SSLContext:
    """Return what trusts public authorities, made once: reading them takes a while."""
    return httpx.create_ssl_context()


def _found(variable: str | None, file: str | None, option: str) -> str | None:
    """Read a secret from its place; None where there is no place."""
    if file is None:
        return _variable(variable, f"{option}Env")
    try:
        return Path(file).read_text("utf-8")
    except (OSError, ValueError):
        raise ConfigurationError(
            f"The file that {option}File names cannot be read on this machine: it has to be there "
            "on the driver and on every executor."
        ) from None


def _variable(name: str | None, option: str) -> str | None:
    if name is None:
        return None
    if not (value := os.environ.get(name)):
        raise ConfigurationError(
            f"The environment variable that {option} names is not set on this machine: it has to "
            "be there on the driver and on every executor."
        )
    return value


def _read_headers(text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
        raise ConfigurationError(
            'Headers are a JSON object of strings, such as {"X-Api-Key":"…"}, wherever headersEnv '
            "or headersFile say."
        )
    return found
