"""Credentials: read from the places that options name, sent to the feed, and never shown."""

import pickle
import sys
import traceback

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from harness.laid_out_feed import ReadFeed
from harness.spark_reading import Streaming, planned
from harness.web import serving, serving_tls
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from zeroeventhub import Principal, feed_routes
from zeroeventhub.errors import ConfigurationError, PageTooLarge, Unauthorized, Unreachable

CANARY = "kanarek"


def application(tokens, seen):
    """Serve a feed to clients with a token; record the headers of requests."""

    async def authorize(request):
        seen.append(dict(request.headers))
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in tokens:
            raise Unauthorized("A token is needed.")
        return Principal(name="billing")

    orders = ReadFeed(1, frozenset())
    orders.append(0)
    return Starlette(routes=feed_routes("/orders", orders, authorize=authorize))


@pytest.fixture
def feed():
    """A feed's URL, the tokens that it takes, and the headers that it saw."""
    tokens, seen = {CANARY}, []
    with serving(application(tokens, seen)) as base:
        yield f"{base}/orders", tokens, seen


def test_token_and_headers_are_found_and_sent(feed, tmp_path, monkeypatch):
    """Executors read token and headers from files or the environment; neither is pickled."""
    url, _, seen = feed
    (tmp_path / "token").write_text(f"{CANARY}\n")
    monkeypatch.setenv("HEADERS", '{"X-Api-Key": "kanarek-b"}')
    reader, tasks = planned(url, bearerTokenFile=tmp_path / "token", headersEnv="HEADERS")
    assert (seen[0]["authorization"], seen[0]["x-api-key"]) == (f"Bearer {CANARY}", "kanarek-b")
    assert CANARY.encode() not in pickle.dumps((reader, tasks))
    assert [batch.num_rows for task in tasks for batch in reader.read(task)] == [1]


def test_token_is_read_again_when_it_is_refused(feed, tmp_path):
    """The file of a token is read again after a refusal, while a connection is open."""
    url, tokens, seen = feed
    file = tmp_path / "token"
    file.write_text(CANARY)
    reader = Streaming(url, bearerTokenFile=file).reader
    reader.initialOffset()
    tokens.clear()
    with pytest.raises(Unauthorized):
        reader.initialOffset()
    tokens.add("another")
    file.write_text("another")
    reader.initialOffset()
    reader.stop()
    shown = [request["authorization"][7:] for request in seen]
    assert shown == [CANARY, CANARY, CANARY, "another"]


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("bearerTokenFile", None, "bearerTokenFile"),
        ("bearerTokenFile", b"\xff", "bearerTokenFile"),
        ("bearerTokenFile", b"kanarek\nkanarek", "cannot be sent"),
        ("headersFile", b"kanarek", "JSON object"),
        ("headersFile", b'{"kanarek": 7}', "JSON object"),
        ("headersFile", b"[" * 100_000, "JSON object"),
        ("headersFile", b'{"X-Key": "kanarek\\r\\nX-Other: kanarek"}', "cannot be sent"),
        ("tlsCaFile", b"kanarek", "PEM"),
        ("bearerTokenEnv", None, "bearerTokenEnv"),
    ],
)
def test_what_cannot_be_read_or_sent_is_told_without_it(name, text, match, feed, tmp_path):
    """The error about a file or variable names its option, and neither its name nor contents."""
    place = CANARY if name.endswith("Env") else tmp_path / CANARY
    if text is not None:
        place.write_bytes(text)
    with pytest.raises(ConfigurationError, match=match) as refused:
        planned(feed[0], **{name: place})
    assert CANARY not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


ONE_PARTITION = '{"token":"1","partitions":[{"id":"0"}]}'


@pytest.mark.parametrize(
    ("answers", "error", "option"),
    [
        ({"": ("", 400)}, ConfigurationError, "set the option v1Partitions"),
        (
            {"": (ONE_PARTITION, 200), "/events": ("\n" * 300_000, 200)},
            PageTooLarge,
            "lower the option pageSize",
        ),
    ],
    ids=["no discovery", "large page"],
)
def test_errors_name_options_of_spark(answers, error, option):
    """Where the client's error names an argument of Python, the source's names its own option."""
    routes = [Route(f"/feed{path}", PlainTextResponse(*answer)) for path, answer in answers.items()]
    with serving(Starlette(routes=routes)) as base, pytest.raises(error, match=option):
        planned(f"{base}/feed", attempts=1)


@pytest.fixture(scope="module")
def authority():
    """The authority that signs certificates of readers, and the server's."""
    return trustme.CA()


@pytest.fixture
def files(authority, tmp_path, monkeypatch):
    """Files of a certificate, its key with and without a password, an authority, and headers."""
    monkeypatch.setenv("KEY_PASSWORD", CANARY)
    issued = authority.issue_cert(common_name="billing")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(CANARY.encode()),
    )
    contents = {
        "ca": authority.cert_pem.bytes(),
        "certificate": issued.cert_chain_pems[0].bytes(),
        "key": issued.private_key_pem.bytes(),
        "locked": locked,
        "both": issued.private_key_and_cert_chain_pem.bytes(),
        "token": b"kanarek-1",
        "headers": b'{"X-Api-Key":"kanarek-2"}',
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return {name: str(tmp_path / name) for name in contents}


def test_certificate_is_shown(files, authority):
    """A feed that wants certificates is read, by a key in the same file, in another, or locked."""
    one, two = {"tlsCertificateFile": files["both"]}, {"tlsCertificateFile": files["certificate"]}
    locked = {"tlsKeyFile": files["locked"], "tlsKeyPasswordEnv": "KEY_PASSWORD"}
    with serving_tls(application({CANARY}, []), authority) as base:
        for shown in (one, two | {"tlsKeyFile": files["key"]}, two | locked):
            with pytest.raises(Unauthorized):
                planned(f"{base}/orders", attempts=1, tlsCaFile=files["ca"], **shown)
        for missing in (one, {"tlsCaFile": files["ca"]}):
            with pytest.raises(Unreachable):
                planned(f"{base}/orders", attempts=1, **missing)
    # The reader asks for no password at the terminal.
    for password in ({}, {"tlsKeyPasswordEnv": "HOME"}):
        with pytest.raises(ConfigurationError, match="tlsKeyFile"):
            planned(base, **two, tlsKeyFile=files["locked"], **password)


async def broken(request):
    """Fail, and repeat the headers of the request."""
    return PlainTextResponse(f"{dict(request.headers)}", 500)


def test_no_secret_is_said(spark, spark_logs, files, authority, capsys):
    """No secret is in Spark's plans, errors, event log and output."""
    by_file = {"bearerTokenFile": files["token"], "headersFile": files["headers"]}
    by_variable = {"bearerTokenEnv": "FEED_TOKEN", "headersEnv": "FEED_HEADERS"}
    tls = {
        "tlsCaFile": files["ca"],
        "tlsCertificateFile": files["certificate"],
        "tlsKeyFile": files["locked"],
        "tlsKeyPasswordEnv": "KEY_PASSWORD",
    }

    def frame(url, options):
        return spark.read.format("zeroeventhub").options(attempts="1", **options).load(url)

    spark.sparkContext.setLogLevel("INFO")
    with (
        serving_tls(application({"kanarek-1"}, []), authority) as base,
        serving(Starlette(routes=[Route("/orders", broken)])) as elsewhere,
    ):
        for url, options, word in [
            (base, tls | by_variable, "Unauthorized"),
            (elsewhere, by_variable, "Unavailable"),
            (elsewhere, {"token": "kanarek-5"}, "Env"),
        ]:
            with pytest.raises(Exception, match=word) as failed:
                frame(f"{url}/orders", options).collect()
            sys.stdout.writelines(traceback.format_exception(failed.value))
            sys.stdout.write(repr(failed.value))
        events = frame(f"{base}/orders", tls | by_file)
        events.explain(mode="extended")
        assert [row.partition for row in events.collect()] == [0]
    spark.sparkContext.setLogLevel("ERROR")
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()  # noqa: SLF001 - no other way
    logged = [
        file.read_text("utf-8", "replace") for file in spark_logs.rglob("*") if file.is_file()
    ]
    assert any("SparkListenerTaskEnd" in text for text in logged)
    assert any("TaskSetManager" in text for text in logged)
    for text in (capsys.readouterr().out, *logged):
        place = text.find(CANARY)
        assert place == -1, text[max(0, place - 200) : place + 50]
