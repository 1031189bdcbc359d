"""What a console shows of feeds, as documents of its API."""

from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial

import httpx
import pytest
from harness.console import (
    append,
    console,
    console_of,
    fetch,
    ids_of,
    lagging,
    shop_routes,
    visited,
)
from harness.published import install
from harness.readers import Numbers, cursor_of, get, head_of
from harness.registered import age
from harness.shop import fill, orders, place
from harness.waiting import meanwhile, until
from harness.web import serving
from sqlalchemy import event, update
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from zeroeventhub import (
    LAST,
    AsyncClient,
    Client,
    FeedInfo,
    Principal,
    Progress,
    Retention,
    TableFeed,
    everybody,
    feed_routes,
)
from zeroeventhub.archive import Archive
from zeroeventhub.console import console_routes, feeds
from zeroeventhub.console.pages import size


def test_feed_is_described(sqlite):
    """A feed's document has each partition's events, oldest event and head, and more of one."""
    append(sqlite, *({"part": n % 2} for n in range(60)), ago=30)
    began = datetime.now(UTC) - timedelta(seconds=30)
    with console(sqlite, feed={"partitions": 2}) as http:
        found = fetch(http)
        one, other = found["partitions"]
        assert (one["id"], one["events"], one["exact"]) == (0, 30, True)
        assert other["events"] == 30
        assert abs(datetime.fromisoformat(one["oldest"]) - began) < timedelta(seconds=10)
        assert found["horizon"]["settled"] == found["horizon"]["drawn"] == 60
        assert found["chosen"]["id"] == 0
        head = Client(str(http.base_url.join("/orders"))).fetch(1, LAST).cursor
        assert [one["head"] for one in (one, other, found["chosen"])] == [head, head, head]
        assert http.get("feeds/orders").text.count(f'title="{head}"') == 2
        assert fetch(http, partition=1)["chosen"]["id"] == 1
        assert [one["name"] for one in fetch(http, "overview")["feeds"]] == ["orders"]


def test_rate_is_that_since_the_last_look(sqlite, monkeypatch):
    """Events a second are those between two counts, or of a minute where there are too many."""
    append(sqlite, *({} for _ in range(10)), ago=500)
    monkeypatch.setattr("zeroeventhub.console.feeds.SHARE", 0)
    with console(sqlite) as http:
        assert fetch(http)["partitions"][0]["rate"] is None
        append(sqlite, *({} for _ in range(30)), ago=20)
        assert fetch(http)["partitions"][0]["rate"] > 0
        monkeypatch.setattr("zeroeventhub.publisher.lookups.MOST", 35)
    with console(sqlite) as http:
        (found,) = fetch(http)["partitions"]
        assert (found["events"], found["exact"], found["rate"]) == (35, False, 0.5)


def test_readers_are_counted_without_the_console(sqlite):
    """Pages, unchanged pages, refusals and waiting readers are counted, but not the console's."""
    append(sqlite, *({} for _ in range(3)))
    with console(sqlite) as http:
        assert fetch(http)["readers"] == {"waiting": 0, "pages": 0, "unchanged": 0, "refusals": []}
        feed = str(http.base_url.join("/orders"))
        page = {"cursor": cursor_of(get(feed, pagesizehint=1)), "pagesizehint": 1}
        tag = get(feed, **page).headers["etag"]
        get(feed, headers={"If-None-Match": tag}, **page)
        head = head_of(feed)
        with meanwhile(lambda: get(feed, cursor=head, wait=1)):
            until(lambda: fetch(http)["readers"]["waiting"] == 1, "a reader waits")
        readers = fetch(http)["readers"]
        assert readers["unchanged"] == 1
        assert readers["refusals"] == []
        assert readers["pages"] >= 3


def test_refusals_are_counted_by_kind(sqlite):
    """Refusals of one status are counted by the kinds of their problems, and the host's apart."""
    append(sqlite, *({} for _ in range(3)))

    def hook(request):
        if "x-blocked" in request.headers:
            raise HTTPException(403)
        return Principal(name="reader")

    with console(sqlite, feed={"authorize": hook}) as http:
        feed = str(http.base_url.join("/orders"))
        head = head_of(feed)
        with sqlite.begin() as connection:
            connection.execute(update(orders).values(data={"n": "another"}))
        for query in ({"token": 7}, {"cursor": "x"}, {"cursor": "x"}, {"partition": "x"}):
            get(feed, **query)
        get(feed, cursor=head)
        get(feed, headers={"x-blocked": "1"})
        found = fetch(http)["readers"]["refusals"]
        assert [(one["kind"], one["status"], one["count"]) for one in found] == [
            ("bad-cursor", 400, 2),
            ("bad-request", 400, 1),
            ("", 403, 1),
            ("token-changed", 409, 1),
            ("diverged", 410, 1),
        ]
        page = http.get("feeds/orders").text
        for kind in ("Bad cursor (400)", "Refused (403)", "Token changed (409)", "Diverged (410)"):
            assert f"<dt>{kind}</dt>" in page


class TwoPartitions(Numbers):
    """A feed of one's own whose partitions 0 and 1 have different heads."""

    def info(self):
        return FeedInfo.of(2)

    def read(self, partition, cursor, limit):
        return self._page(cursor, limit, self.count + partition)


def test_partitions_of_ones_own_have_their_own_heads():
    """Each partition of a feed with two methods has the head that its publisher gives it."""
    with console_of(TwoPartitions(3)) as http:
        assert [one["head"] for one in fetch(http)["partitions"]] == ["3", "4"]
        assert fetch(http, partition=1)["chosen"]["head"] == "4"


def test_archive_is_measured(sqlite, tmp_path):
    """The page has the number of an archive's segments that readers may see, and their bytes."""
    archive = Archive(tmp_path / "archive", shared="https://cdn.example/orders")
    feed = TableFeed(orders, data="data", retention=Retention(), archive=archive)
    fill(sqlite, 30)
    install(feed, sqlite)
    feed.bind(sqlite).seal(segment_events=10)
    with console_of(feed, sqlite) as http:
        found = fetch(http)["chosen"]
        files = [*(tmp_path / "archive").glob("segments/*")]
        assert (found["segments"], len(files)) == (3, 3)
        assert found["segment_bytes"] == sum(file.stat().st_size for file in files)
        page = http.get("feeds/orders").text
        assert "<dt>Archive segments</dt><dd>3</dd>" in page
        assert f"<dt>Archive size</dt><dd>{size(found['segment_bytes'])}</dd>" in page


def test_trimmed_history_says_where_it_begins(sqlite):
    """The page has the cursor after which the history of a feed begins that was trimmed."""
    feed = TableFeed(orders, data="data", retention=Retention())
    fill(sqlite, 30)
    install(feed, sqlite)
    bound = feed.bind(sqlite)
    bound.trim(bound.plan_trim(below=11))
    with console_of(feed, sqlite) as http:
        found = fetch(http)["chosen"]
        assert found["begins"].startswith("2-10-")
        assert f"<dt>History begins after</dt><dd><code>{found['begins']}</code></dd>" in (
            http.get("feeds/orders").text
        )


def test_rates_add_up(sqlite, monkeypatch):
    """The pieces of a plot hold the events of their times, each once, or that there are more."""
    append(sqlite, *({} for _ in range(10)), ago=1600)
    append(sqlite, *({} for _ in range(20)), ago=5 * 3600)
    append(sqlite, *({} for _ in range(40)), ago=9 * 3600)
    with console(sqlite) as http:
        found = fetch(http, "feeds/orders/rates", hours=6)
        step = found["times"][1] - found["times"][0]
        counts = [round(rate * step) for rate in found["rates"]]
        # A cursor cannot tell apart events whose times do not rise with their positions.
        assert counts[-4] == 70
        assert sum(counts) == 70
        monkeypatch.setattr(feeds, "MOST_COUNTED", 70)
        assert fetch(http, "feeds/orders/rates", hours=6)["rates"][-4] is not None
        monkeypatch.setattr(feeds, "MOST_COUNTED", 69)
        assert fetch(http, "feeds/orders/rates", hours=6)["rates"][-4] is None


def test_of_many_consumers_those_of_a_partition_are_counted(sqlite, monkeypatch):
    """If consumers have registered more partitions than a page counts, it counts the chosen one."""
    monkeypatch.setattr(feeds, "SLOT", 0.5)
    with lagging(sqlite, partitions=2) as (client, http):
        client.register_progress("billing", 1, client.fetch(1, "_first", limit=1).cursor)
        assert [one["partition"] for one in fetch(http)["registered"]] == [0, 1]
        monkeypatch.setattr(feeds, "MOST_LAGS", 1)
        assert [one["partition"] for one in fetch(http)["registered"]] == [0]
        (one,) = fetch(http, partition=1)["registered"]
        assert (one["partition"], one["lag"]["events"]) == (1, 1)
        past = partial(fetch, http, "feeds/orders/lags", partition=1)
        until(lambda: past()["lags"]["billing"][-1:] == [1], "a slot has ended")


def test_registered_cursors_that_lead_nowhere_are_shown(sqlite, monkeypatch):
    """The lag of a consumer is unknown where its events were trimmed, and in a partition that the
    feed has replaced or dropped; the page and the past of its lag are shown nevertheless.
    """
    monkeypatch.setattr(feeds, "SLOT", 0.5)
    kept = {"retention": Retention(), "progress": Progress()}
    feed = TableFeed(orders, data="data", time="placed", **kept).bind(sqlite)
    with lagging(sqlite) as (client, http):
        feed.register_progress("audit", 7, client.fetch(0, "_first").cursor)
        age(sqlite, 8 * 24 * 3600)
        assert feed.trim(feed.plan_trim(below=5)) == 4
        found = {one["consumer"]: one["lag"] for one in fetch(http)["registered"]}
        assert found == {"audit": None, "billing": None}
        until(lambda: fetch(http, "feeds/orders/lags")["times"], "a slot has ended")
        assert fetch(http, "feeds/orders/lags")["lags"].keys() == {"billing"}


def test_lag_has_a_past(sqlite, monkeypatch):
    """A registered consumer's lag at the ends of past slots counts the events of before."""
    monkeypatch.setattr(feeds, "SLOT", 0.5)
    with lagging(sqlite) as (client, http):
        until(lambda: fetch(http, "feeds/orders/lags")["times"], "a slot has ended")
        append(sqlite, {}, ago=0)
        until(lambda: fetch(http, "feeds/orders/lags")["lags"]["billing"][-1] == 4, "it is counted")
        client.register_progress("billing", 0, client.fetch(0, "_first").cursor)
        until(lambda: fetch(http, "feeds/orders/lags")["lags"]["billing"][-1] == 0, "it caught up")
        past = fetch(http, "feeds/orders/lags")
        assert past["lags"]["billing"][0] == 3
        assert past["times"] == sorted(past["times"])


@contextmanager
def elsewhere(routes):
    """Serve a feed, and a console in another application; yield its URL, and a client of that."""
    with serving(Starlette(routes=routes)) as url:
        feeds = httpx.AsyncClient()
        shown = console_routes("/", feeds={"orders": AsyncClient(f"{url}/orders", feeds)})

        @asynccontextmanager
        async def lifespan(_):
            async with feeds:
                yield

        host = Starlette(routes=shown, lifespan=lifespan)
        with serving(host) as place, httpx.Client(base_url=place) as http:
            yield url, http


def test_feed_elsewhere_is_read_over_http(sqlite):
    """A feed of another process is shown as far as a client can read it."""
    append(sqlite, *({} for _ in range(4)))
    with elsewhere(shop_routes(sqlite)) as (url, http):
        found = fetch(http)
        assert (found["partitions"][0]["events"], found["horizon"]["age"]) == (4, 0)
        by_id = fetch(http, "feeds/orders/events", id="3")
        assert (ids_of(by_id), by_id["searched"]) == ([3, 4], 2)
        assert by_id["curl"].startswith(f"curl '{url}/orders/events?")
        assert "who holds it back" in http.get("feeds/orders").text


def test_feed_elsewhere_may_show_no_partition(sqlite):
    """A feed of another process of which a client may read nothing is shown without partitions."""
    append(sqlite, {})
    nothing = Principal(name="none", partitions=())
    with elsewhere(shop_routes(sqlite, authorize=lambda _: nothing)) as (_, http):
        (line,) = fetch(http, "overview")["feeds"]
        assert (line["partitions"], line["horizon"]) == (0, None)
        assert (fetch(http)["partitions"], fetch(http)["horizon"]) == ([], None)
        assert "You may read no partition" in http.get("feeds/orders").text


def test_feed_of_ones_own_is_shown():
    """A feed with two methods is shown as far as it goes."""
    with console_of(Numbers(3)) as http:
        (one,) = fetch(http)["partitions"]
        assert (one["events"], one["rate"]) == (None, None)
        assert fetch(http)["chosen"]["head"] == "3"
        shown = fetch(http, "feeds/orders/events")["events"]
        assert [event["raw"] for event in shown] == ['{"n":0}', '{"n":1}', '{"n":2}']
        assert "not plotted" not in http.get("feeds/orders").text
        assert http.get("api/feeds/orders/rates.json").status_code == 400


def test_broken_feed_is_told_of_beside_others(sqlite):
    """A feed that fails is a line of the overview, without the text of its error."""
    broken = Numbers(1)
    broken.error = ValueError("postgresql://user:secret@host")
    broken.info = lambda: (_ for _ in ()).throw(broken.error)
    append(sqlite, {})
    good, bad = shop_routes(sqlite), feed_routes("/bad", broken, name="bad")
    shown = console_routes("/console", feeds={"orders": good, "bad": bad})
    with serving(Starlette(routes=[*good, *bad, *shown])) as url:
        answer = httpx.get(f"{url}/console/")
        assert answer.status_code == 200
        assert "secret" not in answer.text
        assert "feeds/orders" in answer.text
        assert httpx.get(f"{url}/console/feeds/bad").status_code in {500, 503}


def test_nothing_is_asked_while_nobody_looks(sqlite):
    """A console without a visitor sends no statement, and holds no connection after one."""
    append(sqlite, {})
    statements = []
    with console(sqlite) as http:
        fetch(http)
        event.listen(sqlite, "before_cursor_execute", lambda *one: statements.append(one[2]))
        with pytest.raises(AssertionError):
            until(lambda: statements, "a statement is sent", seconds=0.3)
        assert sqlite.pool.checkedout() == 0


def test_page_is_shown_while_the_horizon_is_not_known(postgresql, tmp_path):
    """A feed that has just started, and waits for a writer, shows who has registered before, and
    says of its partition why it is not read.
    """
    with lagging(postgresql):
        pass
    kept = {"retention": Retention(), "progress": Progress()}
    kept["archive"] = Archive(tmp_path, shared="https://files")
    feed = TableFeed(orders, data="data", ordering="observed", **kept)
    with postgresql.begin() as writer:
        place(writer, 1)
        routes = feed_routes("/orders", feed, postgresql)
        shown = console_routes("/", feeds={"orders": routes}, authorize=everybody)
        with visited([*routes, *shown]) as http:
            found = fetch(http)
    assert "waits for open transactions" in found["partitions"][0]["error"]
    assert [(one["consumer"], one["lag"]) for one in found["registered"]] == [("billing", None)]
