"""How bearer tokens are compared: all of them, and in constant time."""

import hmac

import pytest
from starlette.requests import Request

from zeroeventhub import bearer_tokens
from zeroeventhub.errors import Unauthorized
from zeroeventhub.server import tokens as module

TOKENS = [f"{letter}-0123456789abcdef" for letter in "abcde"]


def request(token):
    """A request that shows a token."""
    headers = [(b"authorization", f"Bearer {token}".encode())]
    return Request({"type": "http", "headers": headers})


@pytest.mark.anyio
@pytest.mark.parametrize("token", [*TOKENS, "unknown-0123456789", "x"])
async def test_every_token_is_compared_in_constant_time(token, monkeypatch):
    """Whichever token is shown, each known one is compared, by digests of one length."""
    compared = []

    def compare(one, other):
        compared.append((len(one), len(other)))
        return hmac.compare_digest(one, other)

    hook = bearer_tokens({known: known for known in TOKENS})
    monkeypatch.setattr(module, "compare_digest", compare)
    if token in TOKENS:
        assert (await hook(request(token))).name == token
    else:
        with pytest.raises(Unauthorized):
            await hook(request(token))
    assert compared == [(64, 64)] * len(TOKENS)
