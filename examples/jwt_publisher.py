"""A shop whose readers send a JWT of an identity provider: run `uvicorn jwt_publisher:app`.

It needs PyJWT: pip install 'pyjwt[crypto]'. The token identifies the reader; this file decides what
the reader may see.
"""

import os

import jwt
from shop import engine, feed
from starlette.applications import Starlette
from starlette.requests import Request

from zeroeventhub import Principal, feed_routes
from zeroeventhub.errors import Forbidden, Unauthorized, Unavailable

ISSUER = os.environ["ISSUER"]
AUDIENCE = "https://shop.example/orders"
INVALID = 'Bearer error="invalid_token"'
READERS = {
    "billing": Principal(name="billing", types={"paid", "refunded"}),
    "archive": Principal(name="archive"),
}

keys = jwt.PyJWKClient(f"{ISSUER}/keys", timeout=3)


def reader(request: Request) -> Principal:
    """Return the reader; the feed calls this in a thread, because it may ask the provider."""
    shown = request.headers.getlist("Authorization")
    scheme, _, token = shown[0].partition(" ") if len(shown) == 1 else ("", "", "")
    if scheme.lower() != "bearer":
        raise Unauthorized("Show a token of the identity provider's.")
    try:
        claims = jwt.decode(
            token,
            keys.get_signing_key_from_jwt(token),
            algorithms=["RS256"],  # never the algorithm that the token names
            issuer=ISSUER,
            audience=AUDIENCE,
            leeway=30,
            options={"require": ["exp", "iss", "aud", "sub"]},
        )
    except jwt.PyJWKClientConnectionError as error:
        raise Unavailable("The identity provider does not answer.", retry_after=5) from error
    except jwt.PyJWTError as error:
        raise Unauthorized("The token is not one for this feed.", challenge=INVALID) from error
    if claims["sub"] not in READERS:
        raise Forbidden("You may not read this feed.")
    return READERS[claims["sub"]]


app = Starlette(routes=feed_routes("/orders", feed, engine, authorize=reader))
