"""A canary in every place where the Spark source has a secret, looked for in all that is said."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trustme
from harness.spark import prepare
from harness.tls import certificate_files, serving_tls
from harness.web import serving
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from zeroeventhub import Event, FeedInfo, Page, Principal, feed_routes
from zeroeventhub.errors import Unauthorized

CANARY = "kanarek"
DRIVER = Path(__file__).with_name("secrets_driver.py")
TESTS = Path(__file__).parents[2]


class OneEvent:
    """Publish one event."""

    def info(self):
        """Describe a feed of one partition."""
        return FeedInfo.of(1)

    def read(self, partition, cursor, limit):
        """Read the event, or nothing behind it."""
        return Page([] if cursor == "1" else [Event.of({"n": 7})], "1")


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


@pytest.mark.timeout(300)
def test_reads_come_to_what_they_should(seen):
    """Who shows the right things reads; the others are told what is wrong."""
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
