"""Readers known by a bearer token."""

import hmac
import logging

import httpx
import pytest
from harness.readers import HEADERS, TOKEN, served

from zeroeventhub import Principal, bearer_tokens
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.server import auth


def test_bearer_token_lets_in(shop):
    """A token is shown in one header Authorization, whatever the case of the scheme."""
    with served(shop, bearer_tokens({TOKEN: "reader", "b" * 16: "other"})) as url:
        for scheme in ("Bearer", "bearer", "BEARER"):
            for blank in (" ", "   "):
                header = {"Authorization": f"{scheme}{blank}{TOKEN}"}
                assert httpx.get(url, headers=header).status_code == 200
        for wrong in (
            {},
            {"Authorization": TOKEN},
            {"Authorization": "Basic cmVhZGVyOnNlY3JldA=="},
            {"Authorization": ""},
            [("Authorization", f"Bearer {TOKEN}"), ("Authorization", f"Bearer {TOKEN}")],
            {"X-Authorization": f"Bearer {TOKEN}"},
        ):
            answer = httpx.get(url, headers=wrong)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        for wrong in (TOKEN[:-1], f"{TOKEN}x", TOKEN.upper(), "b" * 15, "\xe5" * 20):
            answer = httpx.get(url, headers={"Authorization": f"Bearer {wrong}".encode("latin-1")})
            challenge = answer.headers["www-authenticate"]
            assert (answer.status_code, challenge) == (401, 'Bearer error="invalid_token"')
            assert wrong not in answer.text
        parameters = {"access_token": TOKEN, "token": TOKEN}
        assert httpx.get(url, params=parameters).status_code == 401


def test_tokens_are_in_no_log(shop, caplog):
    """What a reader shows as a token is logged nowhere, whether it is known or not."""
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpcore").setLevel(logging.WARNING)
    with served(shop, bearer_tokens({TOKEN: "reader"})) as url:
        httpx.get(url, headers=HEADERS)
        httpx.get(url, headers={"Authorization": "Bearer canary-canary-canary"})
        httpx.get(url, headers={"Authorization": f"Basic {TOKEN}"})
    assert "canary" not in caplog.text


def test_every_token_stands_for_its_reader_and_is_compared_in_constant_time(shop, monkeypatch):
    """Each known token is compared, by digests of one length, and lets in its own reader."""
    compared = []

    def compare(one, other):
        compared.append((len(one), len(other)))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(auth, "compare_digest", compare)
    names = [f"{letter}-0123456789abcdef" for letter in "abcde"]
    known = {name: Principal(name=name, partitions={0} if name[0] < "c" else ()) for name in names}
    with served(shop, bearer_tokens(known)) as url:
        for shown in (*names, "unknown-0123456789", "x"):
            compared.clear()
            answer = httpx.get(url, headers={"Authorization": f"Bearer {shown}"})
            assert answer.status_code == (200 if shown in names else 401)
            assert compared == [(64, 64)] * len(names)
            if shown in names:
                assert len(answer.json()["partitions"]) == (shown[0] < "c")


def test_tokens_are_not_kept():
    """Nothing that a hook holds, and nothing that it shows of itself, is a token."""
    hook = bearer_tokens({TOKEN: "reader"})
    assert TOKEN not in f"{hook!r} {vars(hook)!r}"


@pytest.mark.parametrize(
    "token",
    ["", "short", "x" * 15, *(TOKEN + end for end in (" ", "\n", "å")), f"a {TOKEN}", None, 7],
)
def test_token_that_could_be_guessed_or_never_shown_is_refused(token):
    """A token has sixteen characters or more, of those of RFC 6750; no error repeats it."""
    with pytest.raises(ConfigurationError, match="token") as caught:
        bearer_tokens({token: "reader"})
    assert "canary" not in str(caught.value)
