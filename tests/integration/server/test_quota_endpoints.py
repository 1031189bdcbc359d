"""Readers that take no more than their share, and clients that are told so."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from harness.readers import GOOD, HEADERS, TOKEN, fill, kind, open_stream, raising, served
from harness.shop import place
from sqlalchemy import create_engine

from zeroeventhub import Client, Consumer, CursorStore, Principal, Quota, bearer_tokens
from zeroeventhub.errors import Forbidden, TooManyRequests, Unauthorized, Unavailable

PATIENCE = 60


def until(true):
    """Wait until something is true."""
    ending = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < ending
        time.sleep(0.05)


@pytest.fixture
def shop(sqlite):
    """An engine of a database with ten orders."""
    return fill(sqlite)


def test_reader_that_asks_too_often_is_told_when_to_come_again(shop):
    """The rate is each reader's own; its answers say when to come again."""
    hook = bearer_tokens(
        {
            TOKEN: Principal(name="slow", quota=Quota(rate=0.01, burst=2)),
            "other-0123456789abcdef": "other",
        }
    )
    with served(shop, hook) as url:
        answers = [httpx.get(url, headers=HEADERS) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
        assert kind(answers[-1]) == "too-many-requests"
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 100
        other = {"Authorization": "Bearer other-0123456789abcdef"}
        assert [httpx.get(url, headers=other).status_code for _ in range(5)] == [200] * 5


def test_readers_without_a_quota_have_that_of_the_routes(shop):
    """Routes may have a quota for all whose Principal has none."""
    principals = {
        TOKEN: Principal(name="own", quota=Quota(rate=1000)),
        "other-0123456789abcdef": "other",
    }
    with served(shop, bearer_tokens(principals), quota=Quota(rate=0.01, burst=1)) as url:
        other = {"Authorization": "Bearer other-0123456789abcdef"}
        assert [httpx.get(url, headers=other).status_code for _ in range(2)] == [200, 429]
        assert [httpx.get(url, headers=HEADERS).status_code for _ in range(3)] == [200] * 3


def test_only_requests_that_wait_are_waiters(shop):
    """A reader with one place to wait at the head reads on without it, and gets it back."""
    hook = bearer_tokens({TOKEN: Principal(name="reader", quota=Quota(waiters=1))})
    with (
        served(shop, hook) as url,
        ThreadPoolExecutor(1) as pool,
        httpx.Client(headers=HEADERS, timeout=PATIENCE) as session,
    ):
        page = session.get(f"{url}/events", params=GOOD["/events"])
        cursor = json.loads(page.text.splitlines()[-1])["cursor"]
        head = {**GOOD["/events"], "cursor": cursor}

        def wait_in_line():
            """Wait at the head, and come again while somebody else waits there."""
            while True:
                answer = session.get(f"{url}/events", params=head | {"wait": "30"})
                if answer.status_code != 429:
                    return answer

        waiting = pool.submit(wait_in_line)
        briefly = head | {"wait": "0.01"}
        until(lambda: session.get(f"{url}/events", params=briefly).status_code == 429)
        for path, parameters in [
            ("/events", head | {"wait": "30"}),
            ("/http-feed", {"timeout": "30000", "lastEventId": "10"}),
            ("/server-sent-events", {"cursor": cursor}),
        ]:
            refused = session.get(url + path, params=parameters)
            assert (refused.status_code, kind(refused)) == (429, "too-many-requests")
        # What is answered at once waits for nothing.
        for parameters in (head, GOOD["/events"] | {"wait": "30"}):
            assert session.get(f"{url}/events", params=parameters).status_code == 200
        with shop.begin() as connection:
            place(connection, 1, first=10)
        assert waiting.result(PATIENCE).status_code == 200
        page = session.get(f"{url}/events", params=GOOD["/events"])
        briefly["cursor"] = json.loads(page.text.splitlines()[-1])["cursor"]
        assert session.get(f"{url}/events", params=briefly).status_code == 200


def test_requests_under_way_are_bounded_until_they_are_answered(shop):
    """A request counts until its answer is sent, a stream until it is closed."""
    hook = bearer_tokens({TOKEN: Principal(name="reader", quota=Quota(in_flight=1))})
    closed = threading.Event()
    with served(shop, hook) as url, ThreadPoolExecutor(1) as pool:
        opened = threading.Event()

        def stopped(received):
            opened.set()
            return closed.wait(PATIENCE)

        pool.submit(open_stream, url, stopped, **HEADERS)
        assert opened.wait(PATIENCE)
        answer = httpx.get(url, headers=HEADERS)
        assert (answer.status_code, kind(answer)) == (429, "too-many-requests")
        closed.set()
        until(lambda: httpx.get(url, headers=HEADERS).status_code == 200)


def test_client_raises_what_the_feed_said(shop):
    """A client meets the errors of the feed, with what to do about them."""
    principals = {
        TOKEN: Principal(name="reader", quota=Quota(rate=0.01, burst=1)),
    }
    with served(shop, bearer_tokens(principals)) as url, httpx.Client() as stranger:
        with pytest.raises(Unauthorized, match="credentials"):
            Client(url, stranger).discover()
        with httpx.Client(headers=HEADERS) as http:
            client = Client(url, http)
            client.discover()
            with pytest.raises(TooManyRequests) as caught:
                client.fetch(0, "_first")
            assert isinstance(caught.value, Unavailable)
            assert 1 <= caught.value.retry_after <= 100
    with (
        served(shop, raising(Forbidden("Not you."))) as url,
        httpx.Client() as stranger,
        pytest.raises(Forbidden, match="owner"),
    ):
        Client(url, stranger).discover()


def test_consumer_slows_down_as_it_is_told(shop, tmp_path):
    """A consumer that asks more often than it may gets everything all the same."""
    hook = bearer_tokens({TOKEN: Principal(name="reader", quota=Quota(rate=2, burst=1))})
    database = create_engine(f"sqlite:///{tmp_path / 'consumer.db'}")
    store = CursorStore(database)
    with database.begin() as connection:
        store.create_tables(connection)
    found = []
    with served(shop, hook) as url, httpx.Client(headers=HEADERS) as http:
        for page in Consumer(Client(url, http), store, "billing", limit=5, follow=False):
            with database.begin() as connection:
                page.commit(connection)
                found += [event.data["data"]["n"] for event in page.events]
    database.dispose()
    assert found == [*range(10)]


def test_consumer_that_is_not_let_in_ends(shop, tmp_path):
    """A consumer without the right credentials does not ask for ever: a person has to do it."""
    database = create_engine(f"sqlite:///{tmp_path / 'consumer.db'}")
    store = CursorStore(database)
    with database.begin() as connection:
        store.create_tables(connection)
    with (
        served(shop, bearer_tokens({TOKEN: "reader"})) as url,
        httpx.Client() as stranger,
        pytest.raises(Unauthorized, match="credentials"),
    ):
        next(iter(Consumer(Client(url, stranger), store, "billing")))
    database.dispose()
