"""A shop whose orders and consumers its operators see in the browser.

Run it with `OPERATOR_TOKEN=… uvicorn console_publisher:app`; make the token with
`secrets.token_urlsafe()`. Open http://127.0.0.1:8000/console, and sign in with the token.
"""

import os

from shop import engine, feed
from starlette.applications import Starlette

from zeroeventhub import CursorStore, bearer_tokens, everybody, feed_routes
from zeroeventhub.console import console_routes

operators = bearer_tokens({os.environ["OPERATOR_TOKEN"]: "operator"})
store = CursorStore(engine)  # here the consumers are in the shop's own database
with engine.begin() as connection:
    store.create_tables(connection)

orders = feed_routes("/orders", feed, engine, authorize=everybody)
console = console_routes(
    "/console",
    feeds={"orders": orders},
    stores={"billing": store},
    authorize=operators,
    allow_changes=True,
)
app = Starlette(routes=[*orders, *console])
