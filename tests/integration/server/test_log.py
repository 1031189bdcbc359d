"""What a feed tells the log of its problems, and how often."""

import re

import httpx
import pytest
from harness.readers import get, mounted, page_url

from zeroeventhub import Principal, errors
from zeroeventhub.server import incidents

SECRET = "kanarek"


@pytest.fixture
def url(feed):
    """The URL of the feed, whose readers are known by the name that they give."""

    def authorize(request):
        if "refused" in request.headers:
            raise errors.Unauthorized(f"Not with {SECRET}.")
        return Principal(name=request.headers.get("name", ""))

    with mounted(feed, authorize=authorize) as url:
        yield url


def test_id_of_a_proxy_is_told(feed, url, records):
    """An id in the header X-Request-Id is told if it is harmless; the answer has its own."""
    feed.error = errors.Forbidden("why")
    harmless = ["0af7651916cd43dd-8448_eb.211C", "x" * 128]
    for number, sent in enumerate([*harmless, "x" * 129, "a b", "a;b=1", "\xe9", ""]):
        named = {"X-Request-Id": sent.encode("latin-1"), "name": str(number)}
        answer = get(url, headers=named)
        (record,) = records()
        assert record.x_request_id == (sent if sent in harmless else None)
        assert (f"x_request_id={sent}" in record.getMessage()) is (sent in harmless)
        assert not sent or sent not in answer.text
        assert re.fullmatch(r"[0-9a-f-]{36}", record.request_id)


def test_failure_that_comes_back_is_told_again(feed, url, records, monkeypatch):
    """After an answer that went well a failure is told again, with those that were not told."""
    monkeypatch.setattr(incidents, "PAUSE", 0.0)
    error = KeyError()
    for times in (1, 2, 2):
        feed.error = error
        assert [get(url).status_code for _ in range(2)] == [500] * 2
        assert [(one.status, one.times) for one in records()] == [(500, times)]
        feed.error = None
        assert get(url).status_code == 200
    assert records() == []


def test_failure_that_comes_and_goes_is_told_now_and_then(feed, url, records):
    """Where every other request fails, what they fail by is not told each time."""
    for _ in range(10):
        for error in (KeyError(), None):
            feed.error = error
            get(url)
    assert [one.times for one in records()] == [1]


def test_failure_that_goes_on_is_told_again_with_its_number(feed, url, records, monkeypatch):
    """What goes on for long is told again, with how often it has happened since."""
    feed.error = KeyError()
    for _ in range(3):
        get(url)
    assert [one.times for one in records()] == [1]
    monkeypatch.setattr(incidents, "AGAIN", 0.0)
    get(url)
    monkeypatch.undo()
    get(url)
    assert [one.times for one in records()] == [3]


def test_refusals_are_told_once_for_each_reader(feed, url, records, monkeypatch):
    """A reader that is refused again and again is one record, however well others are answered."""
    monkeypatch.setattr(incidents, "PAUSE", 0.0)
    for name in ("alice", "bob", "alice", "bob"):
        feed.error = errors.Forbidden("why")
        get(url, headers={"name": name})
        feed.error = None
        assert get(url, headers={"name": name}).status_code == 200
        assert get(url, headers={"refused": ""}).status_code == 401
    found = [(one.status, one.principal) for one in records()]
    assert found == [(403, "alice"), (401, ""), (403, "bob")]


def test_causes_are_forgotten_when_there_are_too_many(feed, url, records):
    """What has been silent for the longest goes first when too many causes are told apart."""
    feed.error = errors.Forbidden("why")
    with httpx.Client() as session:

        def refused(*names):
            for name in names:
                session.get(page_url(url), headers={"name": str(name)})
            return [one.principal for one in records()]

        assert refused("first", *range(incidents.MOST - 1), "first")[:2] == ["first", "0"]
        assert refused("one too many", "first") == ["one too many"]
        assert refused(0) == ["0"]


def test_words_of_a_hook_are_for_the_reader_alone(url, records):
    """What a hook says of a refusal is answered, and not logged."""
    answer = get(url, headers={"refused": ""})
    assert answer.json()["detail"] == f"Not with {SECRET}."
    (record,) = records()
    assert SECRET not in record.getMessage()
