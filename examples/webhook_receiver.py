"""Take webhooks of a relay: check each signature, and apply each event once."""

import os

from sqlalchemy import create_engine, text
from standardwebhooks.webhooks import Webhook, WebhookVerificationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

webhook = Webhook(os.environ["ZEROEVENTHUB_WEBHOOK_SECRET"])
engine = create_engine("sqlite:///billing.db")
with engine.begin() as connection:
    connection.execute(text("CREATE TABLE IF NOT EXISTS taken (id TEXT PRIMARY KEY)"))
    connection.execute(text("CREATE TABLE IF NOT EXISTS invoices (customer TEXT, amount NUMERIC)"))


def invoice(identity: str, order: dict) -> None:
    """Write the invoice of an order, unless its event has come before."""
    with engine.begin() as connection:
        taken = text("INSERT INTO taken VALUES (:id) ON CONFLICT DO NOTHING")
        if connection.execute(taken, {"id": identity}).rowcount:
            connection.execute(text("INSERT INTO invoices VALUES (:customer, :amount)"), order)


async def take(request: Request) -> Response:
    """Answer 204 when the event is applied, and 401 to strangers."""
    try:
        event = webhook.verify(await request.body(), dict(request.headers))
    except WebhookVerificationError:
        return Response(status_code=401)
    await run_in_threadpool(invoice, request.headers["webhook-id"], event["data"])
    return Response(status_code=204)


app = Starlette(routes=[Route("/hook", take, methods=["POST"])])
