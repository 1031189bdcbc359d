"""What a feed wants to be shown: found where options say, sent to the feed, and told to nobody."""

import json

import pytest
import trustme
from harness.tls import certificate_files, serving_tls
from harness.web import serving
from starlette.applications import Starlette

from zeroeventhub import Event, FeedInfo, Page, Principal, feed_routes
from zeroeventhub.errors import ConfigurationError, Unauthorized, Unreachable
from zeroeventhub.spark.connection import Connection
from zeroeventhub.spark.credentials import Credentials
from zeroeventhub.spark.options import read_options

CANARY = "kanarek"


class Nothing:
    """Publish nothing."""

    def info(self):
        """Describe a feed of one partition."""
        return FeedInfo.of(1)

    def read(self, partition, cursor, limit):
        """Read an event."""
        return Page([Event.of({})], "1")


def application(tokens, seen):
    """Serve a feed to those who have a token; note the headers of requests."""

    async def authorize(request):
        seen.append(dict(request.headers))
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in tokens:
            raise Unauthorized("A token is needed.")
        return Principal(name="billing")

    return Starlette(routes=feed_routes("/orders", Nothing(), authorize=authorize))


@pytest.fixture
def feed():
    """A feed's URL, the tokens that it takes, and the headers that it saw."""
    tokens, seen = {CANARY}, []
    with serving(application(tokens, seen)) as base:
        yield f"{base}/orders", tokens, seen


def discover(url, **given):
    """Ask a feed what it is, as the driver does."""
    with Connection.to(read_options({"path": url, "attempts": "1", **given})) as connection:
        return connection.ask(lambda client: client.discover())


@pytest.mark.parametrize("place", ["Env", "File"])
def test_token_and_headers_are_found_and_sent(feed, place, tmp_path, monkeypatch):
    """A token and headers come from the environment or from files, without white space around."""
    url, _, seen = feed
    given = {}
    for option, text in {"bearerToken": CANARY + "\n", "headers": '{"X-Api-Key": "b"}'}.items():
        if place == "Env":
            monkeypatch.setenv(option, text)
        (tmp_path / option).write_text(text)
        given[option + place] = option if place == "Env" else str(tmp_path / option)
    assert discover(url, **given).partitions
    assert (seen[0]["authorization"], seen[0]["x-api-key"]) == (f"Bearer {CANARY}", "b")


def test_token_is_read_again_when_it_is_refused(feed, tmp_path):
    """A file that has another token by now is read while a connection is open."""
    url, tokens, seen = feed
    file = tmp_path / "token"
    file.write_text(CANARY)
    options = read_options({"path": url, "bearerTokenFile": str(file)})
    with Connection.to(options) as connection:
        connection.ask(lambda client: client.discover())
        tokens.clear()
        with pytest.raises(Unauthorized):
            connection.ask(lambda client: client.discover())
        tokens.add("another")
        file.write_text("another")
        assert connection.ask(lambda client: client.discover()).partitions
    assert [request["authorization"][7:] for request in seen] == [CANARY, CANARY, CANARY, "another"]


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("bearerTokenFile", None, "bearerTokenFile"),
        ("bearerTokenFile", b"\xff", "bearerTokenFile"),
        ("bearerTokenFile", b"kanarek\nkanarek", "cannot be sent"),
        ("bearerTokenFile", "kanarek\u00e5".encode(), "cannot be sent"),
        ("headersFile", b"kanarek", "JSON object"),
        ("headersFile", b'["kanarek"]', "JSON object"),
        ("headersFile", b'{"kanarek": 7}', "JSON object"),
        ("headersFile", b"[" * 100_000, "JSON object"),
        ("headersFile", b'{"kanarek kanarek": "b"}', "cannot be sent"),
        ("headersFile", b'{"X-Key": "kanarek\\r\\nX-Other: kanarek"}', "cannot be sent"),
        ("tlsCaFile", b"kanarek", "PEM"),
        ("tlsCertificateFile", None, "PEM"),
    ],
)
def test_what_cannot_be_read_or_sent_is_told_without_it(name, text, match, feed, tmp_path):
    """A file that is missing or holds something else is told by its option alone."""
    file = tmp_path / CANARY
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(ConfigurationError, match=match) as refused:
        discover(feed[0], **{name: str(file)})
    assert CANARY not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


@pytest.mark.parametrize("name", ["bearerTokenEnv", "headersEnv"])
def test_variable_that_is_not_there_is_told_without_its_name(feed, name):
    """Who gives a token where the name of a variable is asked for does not find it in the log."""
    with pytest.raises(ConfigurationError, match=name) as refused:
        discover(feed[0], **{name: CANARY})
    assert CANARY not in str(refused.value)


@pytest.fixture(scope="module")
def authority():
    """The authority that signs certificates of readers, and the server's."""
    return trustme.CA()


@pytest.fixture
def files(authority, tmp_path, monkeypatch):
    """Files of a reader's certificate, its key, the key under a password, and of the authority."""
    monkeypatch.setenv("KEY_PASSWORD", CANARY)
    return certificate_files(authority, tmp_path, CANARY)


@pytest.mark.parametrize(
    "given",
    [
        {"tlsCertificateFile": "both"},
        {"tlsCertificateFile": "certificate", "tlsKeyFile": "key"},
        {"tlsCertificateFile": "certificate", "tlsKeyFile": "locked", "tlsKeyPasswordEnv": ""},
    ],
    ids=["one file", "two files", "password"],
)
def test_certificate_is_shown(given, files, authority):
    """A feed that wants certificates is read, by a key in the same file, in another, or locked."""
    named = {name: files.get(file, "KEY_PASSWORD") for name, file in given.items()}
    with serving_tls(application({CANARY}, []), authority) as base:
        with pytest.raises(Unauthorized):
            discover(f"{base}/orders", tlsCaFile=files["ca"], **named)
        with pytest.raises(Unreachable):
            discover(f"{base}/orders", tlsCaFile=files["ca"])
        with pytest.raises(Unreachable):
            discover(f"{base}/orders", **named)


@pytest.mark.parametrize("password", [None, "another"])
def test_wrong_password_of_a_key_is_told(password, files, monkeypatch):
    """A key that cannot be opened is told, and nobody is asked for its password."""
    given = {"tlsCertificateFile": files["certificate"], "tlsKeyFile": files["locked"]}
    if password:
        monkeypatch.setenv("WRONG", password)
        given["tlsKeyPasswordEnv"] = "WRONG"
    with pytest.raises(ConfigurationError, match="tlsKeyFile"):
        discover("https://127.0.0.1:1", **given)


def test_secrets_are_not_in_what_is_sent_to_executors(monkeypatch):
    """Options name places; what is there is read where it is needed."""
    monkeypatch.setenv("TOKEN", CANARY)
    options = read_options({"path": "https://h/orders", "bearerTokenEnv": "TOKEN"})
    assert options.credentials == Credentials(token_variable="TOKEN")
    assert CANARY not in repr(options)
    assert json.dumps(options.credentials.headers()) == f'{{"Authorization": "Bearer {CANARY}"}}'
