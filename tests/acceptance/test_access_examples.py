"""The examples of who may read do what docs/security.md says of them."""

import json
import runpy
import sys
import time
from pathlib import Path

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from harness.web import serving
from sqlalchemy import insert
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

EXAMPLES = Path(__file__).parents[2] / "examples"
SECRET = "a secret of sixteen characters or more"
PLACE = {"token": "1", "partition": 0, "cursor": "_first"}
AUDIENCE = "https://shop.example/orders"


@pytest.fixture
def example(monkeypatch, tmp_path):
    """A function that runs an example in an empty folder, and writes three orders."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORDERS_SECRET", SECRET)
    monkeypatch.syspath_prepend(EXAMPLES)
    engines = []

    def run(name):
        sys.modules.pop("shop", None)
        found = runpy.run_path(str(EXAMPLES / f"{name}.py"))
        engines.append(found["engine"])
        orders = sys.modules["shop"].orders
        with found["engine"].begin() as connection:
            rows = [{"type": kind, "data": {"is": kind}} for kind in ("placed", "paid", "refunded")]
            connection.execute(insert(orders), rows)
        return found

    yield run
    for engine in engines:
        engine.dispose()


def seen(url, **options):
    """The types that a reader sees, or the status of the refusal."""
    answer = httpx.get(f"{url}/orders/events", params=PLACE, **options)
    if answer.status_code != 200:
        assert answer.headers["content-type"] == "application/problem+json"
        return answer.status_code
    return [json.loads(line)["data"]["is"] for line in answer.text.splitlines()[:-1]]


def bearer(token):
    """The header of a request that shows a token."""
    return {"Authorization": f"Bearer {token}"}


def test_readers_with_tokens(example, monkeypatch):
    """Each token shows what its reader may see, and at the rate that it may."""
    tokens = {"billing": "billing-0123456789", "archive": "archive-0123456789"}
    monkeypatch.setenv("ORDERS_TOKENS", json.dumps(tokens))
    with serving(example("token_publisher")["app"]) as url:
        assert seen(url, headers=bearer(tokens["billing"])) == ["paid", "refunded"]
        assert seen(url, headers=bearer(tokens["archive"])) == ["placed", "paid", "refunded"]
        assert seen(url, headers=bearer("unknown-0123456789")) == seen(url) == 401
        answers = [seen(url, headers=bearer(tokens["archive"])) for _ in range(30)]
        assert 429 in answers


@pytest.fixture(scope="module")
def key():
    """The key of an identity provider."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture(scope="module")
def issuer(key):
    """The URL of an identity provider, which shows its public key."""
    public = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    keys = {"keys": [{**public, "kid": "1", "use": "sig", "alg": "RS256"}]}

    async def show(request):
        return JSONResponse(keys)

    with serving(Starlette(routes=[Route("/keys", show)])) as url:
        yield url


def signed(key, issuer, *, algorithm="RS256", kid="1", **others):
    """A token of the identity provider's, with other claims than usual, or None to leave out."""
    now = int(time.time())
    usual = {"sub": "billing", "iss": issuer, "aud": AUDIENCE, "iat": now, "exp": now + 300}
    claims = {name: value for name, value in (usual | others).items() if value is not None}
    return jwt.encode(claims, key, algorithm, headers={"kid": kid})


def test_readers_with_a_jwt(example, monkeypatch, key, issuer):
    """A token lets in the reader that it names; without the provider's keys readers get 503."""
    monkeypatch.setenv("ISSUER", issuer)
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)["n"]
    now = int(time.time())
    with serving(example("jwt_publisher")["app"]) as url:
        assert seen(url, headers=bearer(signed(key, issuer))) == ["paid", "refunded"]
        archive = signed(key, issuer, sub="archive", aud=[AUDIENCE, "https://other.example"])
        assert seen(url, headers=bearer(archive)) == ["placed", "paid", "refunded"]
        assert seen(url, headers=bearer(signed(key, issuer, sub="stranger"))) == 403
        refused = {
            "no token": "",
            "nonsense": "x.y.z",
            "another key": signed(other, issuer),
            "an unknown key": signed(other, issuer, kid="2"),
            "another audience": signed(key, issuer, aud="https://other.example"),
            "another issuer": signed(key, "https://other.example"),
            "expired": signed(key, issuer, exp=now - 300),
            "not yet": signed(key, issuer, nbf=now + 300),
            "without an end": signed(key, issuer, exp=None),
            "for nobody": signed(key, issuer, aud=None),
            "by nobody": signed(key, issuer, iss=None),
            "of nobody": signed(key, issuer, sub=None),
            "another algorithm": signed(key, issuer, algorithm="RS512"),
            "unsigned": signed(None, issuer, algorithm="none"),
            "signed with the public key": signed(public, issuer, algorithm="HS256"),
        }
        for what, token in refused.items():
            header = bearer(token) if token else {}
            assert seen(url, headers=header) == 401, what
        twice = [("Authorization", f"Bearer {signed(key, issuer)}")] * 2
        assert seen(url, headers=twice) == 401
    away = "http://127.0.0.1:1"
    monkeypatch.setenv("ISSUER", away)
    with serving(example("jwt_publisher")["app"]) as url:
        assert seen(url, headers=bearer(signed(key, away))) == 503


def test_readers_with_a_certificate(example):
    """A reader may read only if the proxy has verified a certificate of a known name."""
    with serving(example("mtls_publisher")["app"]) as url:
        verified = ("X-Client-Verify", "SUCCESS")
        billing = ("X-Client-Subject", "CN=billing,O=Shop")
        archive = ("X-Client-Subject", "CN=archive,O=Shop")
        assert seen(url, headers=[verified, billing]) == ["paid", "refunded"]
        assert seen(url, headers=[verified, archive]) == ["placed", "paid", "refunded"]
        for refused in (
            [],
            [verified],
            [billing],
            [("X-Client-Verify", "NONE"), billing],
            [("X-Client-Verify", "FAILED:certificate has expired"), billing],
            [verified, ("X-Client-Subject", "CN=stranger,O=Shop")],
            [verified, ("X-Client-Subject", "CN=billing,O=Shop,OU=x")],
            [verified, billing, archive],
            [verified, ("X-Client-Verify", "NONE"), billing],
        ):
            assert seen(url, headers=refused) == 403
