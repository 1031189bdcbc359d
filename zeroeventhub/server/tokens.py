"""Readers known by a token that they were given."""

import re
from collections.abc import Mapping
from hashlib import blake2b
from hmac import compare_digest
from secrets import token_bytes

from starlette.requests import Request

from zeroeventhub.errors import ConfigurationError, Unauthorized
from zeroeventhub.server.principal import Principal

__all__ = ["bearer_tokens"]

_SHORTEST = 16

_FORM = re.compile(rf"[A-Za-z0-9._~+/-]{{{_SHORTEST},}}=*", re.ASCII)

_UNKNOWN = 'Bearer error="invalid_token"'


def bearer_tokens(tokens: Mapping[str, str | Principal]) -> "BearerTokens":
    """Let in who shows one of these tokens in the header Authorization (RFC 6750).

    A hook for `authorize`. Take tokens that nobody guesses, such as `secrets.token_urlsafe()`
    gives, and keep them out of the source. While a token is replaced, the old and the new one may
    have one name.

    Args:
        tokens: what each stands for: the name of a reader who may see everything, or a Principal.

    Raises:
        ConfigurationError: a token is short, or of characters that such a token cannot have.
    """
    return BearerTokens(tokens)


class BearerTokens:
    """Know readers by their tokens, of which it keeps digests only; see `bearer_tokens`."""

    def __init__(self, tokens: Mapping[str, str | Principal]) -> None:
        self._key = token_bytes(32)
        self._readers = [
            (self._digest(_checked(token)), _principal(reader)) for token, reader in tokens.items()
        ]

    async def __call__(self, request: Request) -> Principal:
        """Return who shows a known token.

        Raises:
            Unauthorized: nobody does.
        """
        shown = request.headers.getlist("authorization")
        scheme, _, token = shown[0].partition(" ") if len(shown) == 1 else ("", "", "")
        if scheme.lower() != "bearer":
            raise Unauthorized("Show one bearer token, in one header Authorization.")
        found, digest = None, self._digest(token.strip(" "))
        for known, principal in self._readers:  # all of them, however early one is found
            if compare_digest(known, digest):
                found = principal
        if found is None:
            raise Unauthorized("The bearer token is not one of this feed.", challenge=_UNKNOWN)
        return found

    def _digest(self, token: str) -> bytes:
        return blake2b(token.encode(), key=self._key).digest()


def _checked(token: object) -> str:
    if not isinstance(token, str) or not _FORM.fullmatch(token):
        # The token is not repeated: it may be a real one with a blank behind it.
        raise ConfigurationError(
            f"A bearer token has at least {_SHORTEST} letters, digits and characters of ._~+/- in "
            "front of any =, such as secrets.token_urlsafe() gives."
        )
    return token


def _principal(reader: str | Principal) -> Principal:
    return reader if isinstance(reader, Principal) else Principal(name=reader)
