"""How the feed that is being checked is asked."""

import httpx
import pytest

from zeroeventhub.conformance.answer import Checkpoint
from zeroeventhub.conformance.subject import Probe, Subject
from zeroeventhub.errors import ConfigurationError

DISCOVERY = b'{"token":"%b","partitions":[{"id":"0"}]}'


def response(status=200, body=b"", **headers):
    """Make a response whose bytes can be read raw."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, headers=headers, stream=httpx.ByteStream(body))


def probe(answer, url="http://user:canary@host/feed?key=canary"):
    """Make a probe whose requests a function answers."""
    return Probe(url, httpx.Client(transport=httpx.MockTransport(answer)))


@pytest.mark.parametrize(("refusals", "status"), [(2, 200), (3, 503)])
@pytest.mark.parametrize(("later", "pause"), [("0", 0), ("2", 2), ("9" * 400, 5), (b"\xb2", 1)])
def test_answer_that_says_later_is_asked_for_again(monkeypatch, refusals, status, later, pause):
    """A request that is answered with 503 is sent three times at most, after a pause of seconds."""
    pauses = []
    monkeypatch.setattr("time.sleep", pauses.append)
    answers = iter([*(response(503, retry_after=later) for _ in range(refusals)), response()])
    assert probe(lambda _: next(answers)).ask().status == status
    assert pauses == [pause] * 2


def test_new_token_is_fetched_once_the_old_one_is_refused():
    """A page that is refused because of its token is asked for again with a new one."""
    tokens = []

    def answer(request):
        if request.url.path == "/feed":
            return response(200, DISCOVERY % (b"new" if tokens else b"old"))
        tokens.append(request.url.params["token"])
        return response(409 if len(tokens) == 1 else 200, b'{"cursor":"c","caughtUp":true}\n')

    page = Subject(probe(answer)).page(0, "_first")
    assert page.end == Checkpoint("c", 0, caught_up=True)
    assert tokens == ["old", "new"]


def test_answer_shows_nothing_that_is_secret():
    """What stands in the feed's own URL is sent, and not shown."""
    sent = []
    asked = probe(lambda request: sent.append(str(request.url)) or response())
    shown = asked.ask("/events", [("cursor", "_first")]).target
    assert shown == "/feed/events?…&cursor=_first"
    assert "key=canary&cursor=_first" in sent[0]
    assert asked.address == "http://host/feed"


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:port", "/feed"])
def test_address_that_is_none_is_refused(url):
    """A probe takes only the URL of an HTTP server."""
    with pytest.raises(ConfigurationError):
        probe(None, url)
