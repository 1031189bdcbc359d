"""What a feed wants to be shown: found where options say, sent to the feed, and told to nobody."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import trustme
from harness.spark import prepare
from harness.spark_reading import Streaming, planned
from harness.tls import certificate_files, serving_tls
from harness.web import serving
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from zeroeventhub import Event, FeedInfo, Page, Principal, feed_routes
from zeroeventhub.errors import ConfigurationError, Unauthorized, Unreachable

CANARY = "kanarek"


class OneEvent:
    """Publish one event."""

    def info(self):
        """Describe a feed of one partition."""
        return FeedInfo.of(1)

    def read(self, partition, cursor, limit):
        """Read the event, or nothing behind it."""
        return Page([] if cursor == "1" else [Event.of({"n": 7})], "1")


def application(tokens, seen):
    """Serve a feed to those who have a token; note the headers of requests."""

    async def authorize(request):
        seen.append(dict(request.headers))
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in tokens:
            raise Unauthorized("A token is needed.")
        return Principal(name="billing")

    return Starlette(routes=feed_routes("/orders", OneEvent(), authorize=authorize))


@pytest.fixture
def feed():
    """A feed's URL, the tokens that it takes, and the headers that it saw."""
    tokens, seen = {CANARY}, []
    with serving(application(tokens, seen)) as base:
        yield f"{base}/orders", tokens, seen


def plan(url, **given):
    """Plan a batch of a feed, as the driver does."""
    return planned(url, attempts=1, **given)


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
    assert plan(url, **given)
    assert (seen[0]["authorization"], seen[0]["x-api-key"]) == (f"Bearer {CANARY}", "b")


def test_token_is_read_again_when_it_is_refused(feed, tmp_path):
    """A file that has another token by now is read while a connection is open."""
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
        plan(feed[0], **{name: str(file)})
    assert CANARY not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


@pytest.mark.parametrize("name", ["bearerTokenEnv", "headersEnv"])
def test_variable_that_is_not_there_is_told_without_its_name(feed, name):
    """Who gives a token where the name of a variable is asked for does not find it in the log."""
    with pytest.raises(ConfigurationError, match=name) as refused:
        plan(feed[0], **{name: CANARY})
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
            plan(f"{base}/orders", tlsCaFile=files["ca"], **named)
        with pytest.raises(Unreachable):
            plan(f"{base}/orders", tlsCaFile=files["ca"])
        with pytest.raises(Unreachable):
            plan(f"{base}/orders", **named)


@pytest.mark.parametrize("password", [None, "another"])
def test_wrong_password_of_a_key_is_told(password, files, monkeypatch):
    """A key that cannot be opened is told, and nobody is asked for its password."""
    given = {"tlsCertificateFile": files["certificate"], "tlsKeyFile": files["locked"]}
    if password:
        monkeypatch.setenv("WRONG", password)
        given["tlsKeyPasswordEnv"] = "WRONG"
    with pytest.raises(ConfigurationError, match="tlsKeyFile"):
        plan("https://127.0.0.1:1", **given)


def test_secrets_are_not_in_what_is_sent_to_executors(feed, monkeypatch):
    """Options name places; what is there is read where it is needed."""
    monkeypatch.setenv("TOKEN", CANARY)
    reader, tasks = plan(feed[0], bearerTokenEnv="TOKEN")
    assert CANARY.encode() not in pickle.dumps((reader, tasks))
    assert [batch.num_rows for task in tasks for batch in reader.read(task)] == [1]


DRIVER = Path(__file__).with_name("secrets_driver.py")
TESTS = Path(__file__).parents[2]


async def authorize(request):
    """Let in who shows all that is asked for."""
    shown = (request.headers.get("authorization"), request.headers.get("x-api-key"))
    if shown not in {("Bearer kanarek-1", None), ("Bearer kanarek-2", "kanarek-3")}:
        raise Unauthorized("A token is needed.")
    return Principal(name="billing")


async def broken(request):
    """Fail, and repeat what came."""
    return PlainTextResponse(f"{dict(request.headers)}", 500)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """All that a driver says: what its reads came to, by name, and every text that it left."""
    prepare()
    folder, authority = tmp_path_factory.mktemp("secrets"), trustme.CA()
    files = certificate_files(authority, folder, "kanarek-4")
    for name, text in {"token": "kanarek-2", "headers": '{"X-Api-Key":"kanarek-3"}'}.items():
        (folder / name).write_text(text)
        files[name] = str(folder / name)
    logs = folder / "logs"
    logs.mkdir()
    application = Starlette(
        routes=[
            *feed_routes("/orders", OneEvent(), authorize=authorize),
            Route("/broken", broken),
        ]
    )
    by_variable = {"bearerTokenEnv": "FEED_TOKEN"}
    by_file = {"bearerTokenFile": files["token"], "headersFile": files["headers"]}
    by_certificate = {
        "tlsCaFile": files["ca"],
        "tlsCertificateFile": files["certificate"],
        "tlsKeyFile": files["locked"],
        "tlsKeyPasswordEnv": "FEED_KEY_PASSWORD",
    }
    with serving(application) as base, serving_tls(application, authority) as secure:
        url = f"{base}/orders"
        cases = {
            "variable": {"url": url, **by_variable},
            "file": {"url": url, **by_file},
            "certificate": {"url": f"{secure}/orders", **by_variable, **by_certificate},
            "refused": {"url": url, "bearerTokenEnv": "FEED_OTHER", "headersEnv": "FEED_HEADERS"},
            "broken": {"url": f"{base}/broken", "attempts": "1", **by_file},
            "unreachable": {"url": "http://127.0.0.1:1/orders", "attempts": "1", **by_variable},
            "unsendable": {"url": url, "bearerTokenEnv": "FEED_UNSENDABLE"},
            "wrong password": {
                "url": f"{secure}/orders",
                **by_certificate,
                "tlsKeyPasswordEnv": "FEED_TOKEN",
            },
            "token": {"url": url, "token": "kanarek-5"},
            "value": {"url": url, "startingOffsets": "kanarek-6"},
            "address": {"url": url.replace("//", "//user:kanarek-7@")},
        }
        driver = subprocess.run(
            [sys.executable, DRIVER, json.dumps(cases), logs],
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
                "FEED_TOKEN": "kanarek-1",
                "FEED_OTHER": "kanarek-8",
                "FEED_HEADERS": '{"Cookie":"kanarek-9"}',
                "FEED_KEY_PASSWORD": "kanarek-4",
                "FEED_UNSENDABLE": "kanarek-10\nkanarek-10",
            },
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert driver.returncode == 0, driver.stderr
    texts = {"stdout": driver.stdout, "stderr": driver.stderr}
    texts |= {
        str(path): path.read_text("utf-8", "replace") for path in logs.rglob("*") if path.is_file()
    }
    return driver.stdout, texts


@pytest.mark.timeout(300)  # a Java of its own starts
@pytest.mark.xdist_group("secrets")
def test_reads_of_a_driver_come_to_what_they_should(seen):
    """A driver that shows the right things reads; the others are told what is wrong."""
    stdout, _ = seen
    for name in ("variable", "file", "certificate"):
        assert f"{name} read [Row(partition=0" in stdout
    told = {
        "refused": "Unauthorized",
        "broken": "Unavailable",
        "unreachable": "Unreachable",
        "unsendable": "cannot be sent",
        "wrong password": "tlsKeyFile",
        "token": "bearerTokenEnv",
        "value": "startingOffsets",
        "address": "headersEnv",
    }
    for name, word in told.items():
        assert word in stdout.split(f"{name} failed ")[1].split(" end\n")[0], name


@pytest.mark.timeout(300)
@pytest.mark.xdist_group("secrets")
def test_no_secret_is_said(seen):
    """No canary is in what driver and tasks print, in plans, exceptions or the event log."""
    _, texts = seen
    assert any("SparkListenerTaskEnd" in text for text in texts.values())
    assert "TaskSetManager" in texts["stderr"]
    leaks = {
        name: text[max(0, text.index(CANARY) - 200) : text.index(CANARY) + 50]
        for name, text in texts.items()
        if CANARY in text
    }
    assert leaks == {}
