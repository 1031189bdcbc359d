"""A shop whose readers need a token that the shop has given them.

Run it with `ORDERS_TOKENS='{"billing": "…", "archive": "…"}' ORDERS_SECRET=… uvicorn
token_publisher:app`; make the tokens and the secret with `secrets.token_urlsafe()`.
"""

import json
import os

from shop import engine, feed
from starlette.applications import Starlette
from starlette.middleware import Middleware

from zeroeventhub import FeedAuthorization, Principal, Quota, bearer_tokens, feed_routes

tokens = json.loads(os.environ["ORDERS_TOKENS"])
readers = bearer_tokens(
    {
        tokens["billing"]: Principal(name="billing", types={"paid", "refunded"}),
        tokens["archive"]: Principal(name="archive", quota=Quota(rate=1, burst=10, in_flight=4)),
    }
)

app = Starlette(
    routes=feed_routes("/orders", feed, engine, authorize=readers),
    middleware=[Middleware(FeedAuthorization)],  # refuses feeds without an `authorize`
)
