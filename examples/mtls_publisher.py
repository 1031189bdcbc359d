"""A shop whose readers have certificates, which nginx verifies by nginx-mtls.conf in this folder.

Only nginx may reach it: `uvicorn --host 127.0.0.1 mtls_publisher:app`.
"""

from shop import engine, feed
from starlette.applications import Starlette
from starlette.requests import Request

from zeroeventhub import Principal, feed_routes
from zeroeventhub.errors import Forbidden

READERS = {
    "CN=billing,O=Shop": Principal(name="billing", types={"paid", "refunded"}),
    "CN=archive,O=Shop": Principal(name="archive"),
}


async def reader(request: Request) -> Principal:
    """Return the reader; nginx verifies its certificate and sets both headers on every request."""
    verified = request.headers.getlist("X-Client-Verify")
    subject = request.headers.getlist("X-Client-Subject")
    if verified != ["SUCCESS"] or len(subject) != 1 or subject[0] not in READERS:
        raise Forbidden("Show the certificate of a reader of this feed.")
    return READERS[subject[0]]


app = Starlette(routes=feed_routes("/orders", feed, engine, authorize=reader))
