"""A feed behind the nginx of the shipped example for readers that show a certificate."""

import ssl
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx
import pytest
import trustme
from harness.nginx import example, nginx, reserved_port
from harness.shop import metadata, orders, place
from harness.web import serving
from starlette.applications import Starlette

from zeroeventhub import FIRST, Client, Principal, TableFeed, feed_routes
from zeroeventhub.errors import Forbidden, Unauthorized, ZeroEventHubError

PATIENCE = 60


@pytest.fixture(scope="module")
def authority():
    """The authority that signs certificates of readers, and the server's."""
    return trustme.CA()


def names(subject):
    """Return the parts of a certificate's subject, as nginx writes it (RFC 2253)."""
    return dict(part.split("=", 1) for part in subject.split(","))


async def by_certificate(request):
    """Let in the reader that nginx has verified, if it is the billing service."""
    if request.headers["x-client-verify"] != "SUCCESS":
        raise Unauthorized("A certificate is needed.")
    name = names(request.headers["x-client-subject"])["CN"]
    if name != "billing":
        raise Forbidden("This reader may not read.")
    return Principal(name=name)


class Listening:
    """Take note of the headers of every request."""

    def __init__(self, application):
        self._application = application
        self.heard = []

    async def __call__(self, scope, receive, send):
        """Hand a request on."""
        if scope["type"] == "http":
            self.heard.append([(name.decode(), value.decode()) for name, value in scope["headers"]])
        await self._application(scope, receive, send)


@pytest.fixture
def feed(sqlite, authority, tmp_path):
    """A feed behind nginx; its URL, and what heard of its readers."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        place(connection, 3)
    files = {name: tmp_path / name for name in ("server.pem", "server.key", "readers.pem")}
    server = authority.issue_cert("127.0.0.1")
    server.cert_chain_pems[0].write_to_path(files["server.pem"])
    server.private_key_pem.write_to_path(files["server.key"])
    authority.cert_pem.write_to_path(files["readers.pem"])
    source = TableFeed(orders, data="data")
    routes = feed_routes("/orders", source, sqlite, authorize=by_certificate)
    listening = Listening(Starlette(routes=routes))
    with serving(listening) as publisher, reserved_port() as port:
        changes = {f"/etc/nginx/{name}": str(path) for name, path in files.items()}
        changes["127.0.0.1:8000"] = urlsplit(publisher).netloc
        changes["listen 443 ssl;"] = f"listen 127.0.0.1:{port} reuseport ssl;"
        with nginx(example("nginx-mtls.conf", changes), port):
            yield f"https://127.0.0.1:{port}/orders", listening


@contextmanager
def reader(feed, authority, certificate=None, **options):
    """Read the feed with a certificate."""
    url, _ = feed
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if certificate is not None:
        certificate.configure_cert(context)
    with httpx.Client(verify=context, timeout=PATIENCE, **options) as session:
        yield Client(url, session)


def test_reader_with_a_certificate_reads(feed, authority):
    """A reader that the authority vouches for is let in by the name in its certificate."""
    with reader(feed, authority, authority.issue_cert(common_name="billing")) as client:
        page = client.fetch(0, FIRST)
    assert [event.data["n"] for event in page.events] == [0, 1, 2]


@pytest.mark.test_all
def test_reader_of_another_name_is_refused(feed, authority):
    """A certificate of another reader is good, and the publisher has to say what it is good for."""
    with (
        reader(feed, authority, authority.issue_cert(common_name="marketing")) as client,
        pytest.raises(Forbidden),
    ):
        client.discover()
    _, publisher = feed
    assert [names(dict(headers)["x-client-subject"])["CN"] for headers in publisher.heard] == [
        "marketing"
    ]


@pytest.mark.test_all
def test_reader_without_a_certificate_is_refused_by_nginx(feed, authority):
    """Who shows no certificate is refused as by the feed, and the publisher hears nothing."""
    with reader(feed, authority) as client, pytest.raises(Forbidden, match="certificate"):
        client.fetch(0, FIRST)
    _, publisher = feed
    assert publisher.heard == []


@pytest.mark.test_all
def test_reader_of_another_authority_is_refused_by_nginx(feed, authority):
    """Who shows a certificate that anybody made is not let in, whatever name is in it."""
    with (
        reader(feed, authority, trustme.CA().issue_cert(common_name="billing")) as client,
        pytest.raises(ZeroEventHubError) as refused,
    ):
        client.fetch(0, FIRST)
    assert isinstance(refused.value, Forbidden)
    _, publisher = feed
    assert publisher.heard == []


@pytest.mark.parametrize(
    ("verify", "subject"),
    [
        pytest.param("X-Client-Verify", "X-Client-Subject", marks=pytest.mark.test_all),
        pytest.param("x-client-verify", "x-client-subject", marks=pytest.mark.test_all),
        ("X_Client_Verify", "X_Client_Subject"),
    ],
    ids=["as they are", "in small letters", "with underscores"],
)
def test_client_cannot_make_up_who_it_is(feed, authority, verify, subject):
    """What a client says by the names of nginx's headers never arrives, neither first nor last."""
    made_up = [(verify, "SUCCESS"), (subject, "CN=billing"), (subject, "CN=billing,O=twice")]
    marketing = authority.issue_cert(common_name="marketing")
    with (
        reader(feed, authority, marketing, headers=made_up) as client,
        pytest.raises(Forbidden),
    ):
        client.discover()
    with reader(feed, authority, headers=made_up) as client, pytest.raises(Forbidden):
        client.discover()
    _, publisher = feed
    (headers,) = publisher.heard
    said = [(name, value) for name, value in headers if name.replace("_", "-").startswith("x-cl")]
    assert [name for name, _ in said] == ["x-client-verify", "x-client-subject"]
    assert all("billing" not in value for _, value in said)
