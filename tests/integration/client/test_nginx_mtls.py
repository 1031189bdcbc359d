"""A feed behind the nginx of the shipped example for readers that show a certificate."""

import ssl
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx
import pytest
import trustme
from harness.nginx_paths import example, nginx, reserved_port
from harness.shop import fill, orders
from harness.web import serving
from starlette.applications import Starlette

from zeroeventhub import FIRST, Client, Principal, TableFeed, feed_routes
from zeroeventhub.errors import Forbidden, Unauthorized

PATIENCE = 60


@pytest.fixture(scope="module")
def authority():
    """The authority that signs certificates of readers, and the server's."""
    return trustme.CA()


async def by_certificate(request):
    """Let in the reader that nginx has verified, if it is the billing service."""
    if request.headers["x-client-verify"] != "SUCCESS":
        raise Unauthorized("A certificate is needed.")
    if "CN=billing" not in request.headers["x-client-subject"].split(","):
        raise Forbidden("This reader may not read.")
    return Principal(name="billing")


@pytest.fixture
def feed(sqlite, authority, tmp_path):
    """A feed behind nginx; its URL, and the headers of the requests that come through."""
    fill(sqlite, 3)
    files = {name: tmp_path / name for name in ("server.pem", "server.key", "readers.pem")}
    server = authority.issue_cert("127.0.0.1")
    server.cert_chain_pems[0].write_to_path(files["server.pem"])
    server.private_key_pem.write_to_path(files["server.key"])
    authority.cert_pem.write_to_path(files["readers.pem"])
    source = TableFeed(orders, data="data")
    application = Starlette(routes=feed_routes("/orders", source, sqlite, authorize=by_certificate))
    heard = []

    async def listening(scope, receive, send):
        if scope["type"] == "http":
            heard.append([(name.decode(), value.decode()) for name, value in scope["headers"]])
        await application(scope, receive, send)

    with serving(listening) as publisher, reserved_port() as port:
        changes = {f"/etc/nginx/{name}": str(path) for name, path in files.items()}
        changes["127.0.0.1:8000"] = urlsplit(publisher).netloc
        changes["listen 443 ssl;"] = f"listen 127.0.0.1:{port} reuseport ssl;"
        with nginx(example("nginx-mtls.conf", changes), port):
            yield f"https://127.0.0.1:{port}/orders", heard


@contextmanager
def reader(feed, authority, certificate, **options):
    """Read the feed with a certificate, or without one."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if certificate is not None:
        certificate.configure_cert(context)
    with httpx.Client(verify=context, timeout=PATIENCE, **options) as session:
        yield Client(feed[0], session)


def test_reader_with_a_certificate_reads(feed, authority):
    """A reader that the authority vouches for is let in by the name in its certificate."""
    with reader(feed, authority, authority.issue_cert(common_name="billing")) as client:
        page = client.fetch(0, FIRST)
    assert [event.data["n"] for event in page.events] == [0, 1, 2]


@pytest.mark.test_all
def test_reader_that_the_authority_does_not_know_is_refused_by_nginx(feed, authority):
    """Nginx refuses a reader without a certificate, or with its own, and asks no publisher."""
    for certificate in (None, trustme.CA().issue_cert(common_name="billing")):
        with reader(feed, authority, certificate) as client, pytest.raises(Forbidden):
            client.fetch(0, FIRST)
    assert feed[1] == []


@pytest.mark.parametrize(
    ("verify", "subject"),
    [
        pytest.param("X-Client-Verify", "X-Client-Subject", marks=pytest.mark.test_all),
        ("X_Client_Verify", "X_Client_Subject"),
    ],
    ids=["as they are", "with underscores"],
)
def test_client_cannot_make_up_who_it_is(feed, authority, verify, subject):
    """A client's own nginx headers never arrive; another name in a certificate is refused."""
    made_up = [(verify, "SUCCESS"), (subject, "CN=billing"), (subject, "CN=billing,O=twice")]
    for certificate in (authority.issue_cert(common_name="marketing"), None):
        with (
            reader(feed, authority, certificate, headers=made_up) as client,
            pytest.raises(Forbidden),
        ):
            client.discover()
    _, (headers,) = feed
    said = {(name, value) for name, value in headers if name.replace("_", "-").startswith("x-cl")}
    assert {name for name, _ in said} == {"x-client-verify", "x-client-subject"}
    assert len(said) == 2
    assert "CN=marketing" in dict(said)["x-client-subject"].split(",")
