"""The hooks of a publisher's observer, over real HTTP."""

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from harness.readers import Watcher, cursor_of, get, served
from harness.shop import fill, orders, place, write
from harness.statements import add
from harness.waiting import until
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException

from zeroeventhub import FIRST, TableFeed
from zeroeventhub.publisher import horizon_monitor
from zeroeventhub.server import Principal, Quota
from zeroeventhub.telemetry import PrometheusPublisher, horizon_collector

PLACE = {"token": "1", "partition": "0", "cursor": "_first"}


@pytest.fixture
def observer():
    """An observer that records answers."""
    return Watcher()


@pytest.fixture
def url(sqlite, observer):
    """The URL of a feed with five orders, which knows a reader by its name."""

    def authorize(request):
        name = request.headers.get("x-name", "alice")
        if name == "nobody":
            raise HTTPException(404)
        return Principal(name=name, quota=Quota(rate=1.0, burst=1) if name == "eager" else None)

    with served(fill(sqlite, 5), authorize, name="orders", observer=observer) as url:
        yield url


def test_answer_is_described(url, observer):
    """An observer sees the route, the principal, the events and the bytes of each answer."""
    for path, parameters, events in [
        ("", {"n": "1", "cursor0": "_first"}, 5),
        ("/events", PLACE | {"pagesizehint": "2"}, 2),
        ("/lag", PLACE, 0),
        ("/splits", PLACE | {"count": "2"}, 0),
        ("/cursor-of-count", PLACE | {"events": "2"}, 0),
        ("/http-feed", {}, 5),
    ]:
        answer = httpx.get(url + path, params=parameters)
        heard = observer.answers.pop()
        assert (heard.feed, heard.route) == ("orders", path.removeprefix("/") or "discovery")
        assert (heard.principal, heard.status) == ("alice", 200)
        assert (heard.events, heard.size) == (events, len(answer.content))
        assert 0 < heard.seconds < 30
        assert heard.waited == 0
    assert observer.answers == []


def test_answer_without_a_body_has_no_events(url, observer):
    """Answers to HEAD and with status 304 do not count as pages; refusals have a name."""
    cursor = cursor_of(get(url, pagesizehint=1))
    tag = get(url, cursor=cursor, pagesizehint=2).headers["etag"]
    get(url, cursor=cursor, pagesizehint=2, headers={"if-none-match": tag})
    get(url, method="HEAD", pagesizehint=2)
    for name in ("eager", "eager", "nobody"):
        httpx.get(url, headers={"x-name": name})
    found = [(one.status, one.events, one.size > 0, one.principal) for one in observer.answers[1:]]
    assert found == [
        (200, 2, True, "alice"),
        (304, 0, False, "alice"),
        (200, 0, False, "alice"),
        (200, 0, True, "eager"),
        (429, 0, True, "eager"),
        (404, 0, False, ""),
    ]


def test_time_at_the_head_is_told_apart(url, observer, sqlite):
    """A request that waits shows as a waiter, and the time that it waits is not the feed's."""
    cursor = cursor_of(get(url))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(get, url, cursor=cursor, wait=20)
        observer.until_waiting(1)
        time.sleep(0.2)  # so that it has waited for a time that can be told from none
        write(sqlite, 3, first=5)
        assert len(answer.result().text.splitlines()) == 4
    assert (observer.feeds, observer.counts) == ({"orders"}, [0, 1, 0])
    until(lambda: len(observer.answers) == 2, "it is heard of")
    heard = observer.answers[-1]
    assert heard.events == 3
    assert 0.1 < heard.waited <= heard.seconds


def test_what_consumers_miss_is_a_metric(sqlite):
    """Events in no partition of the feed, and the size of the longest event, can be alerted on."""
    source = TableFeed(orders, data="data", partition="part", partitions=1)

    def shown(feed, name):
        registry = CollectorRegistry()
        PrometheusPublisher(registry).observe_horizon(feed, "orders")
        return registry.get_sample_value(f"zeroeventhub_publisher_{name}", {"feed": "orders"})

    feed = source.bind(fill(sqlite, 0))
    add(sqlite, orders, [{"data": "x" * 70_000}, {"data": {}}])
    feed.read(0, FIRST, 10)
    assert (shown(feed, "unpublished"), shown(feed, "longest_event_bytes")) == (0, 70_002)
    add(sqlite, orders, {"part": 1, "data": {}})
    assert shown(source.bind(sqlite), "unpublished") == 1


def test_scrape_of_a_process_shows_what_the_others_have_seen(postgresql, tmp_path, monkeypatch):
    """The horizon ages from the first scrape of any process, which names its writer at once."""
    monkeypatch.setattr(horizon_monitor, "LATE", 0.05)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    feeds = [TableFeed(orders, data="data").bind(fill(postgresql)) for _ in range(3)]
    feeds[0].read(0, FIRST, 10)

    def scrape(feed, name="orders"):
        collected = horizon_collector(feed, name).collect()
        return {one.name: one.value for family in collected for one in family.samples}

    with postgresql.connect() as writer:
        place(writer, 1)
        assert scrape(feeds[0])["zeroeventhub_publisher_horizon_age_seconds"] == 0
        time.sleep(0.1)
        found = scrape(feeds[1])
        assert found["zeroeventhub_publisher_horizon_age_seconds"] > 0.1
        assert found["zeroeventhub_publisher_blocker_age_seconds"] > 0.1
        assert found["zeroeventhub_publisher_longest_event_bytes"] == len('{"n": 0}')
        assert scrape(feeds[2], "order*")["zeroeventhub_publisher_horizon_age_seconds"] == 0
        writer.commit()
    assert scrape(feeds[2])["zeroeventhub_publisher_horizon_age_seconds"] == 0
