"""Who gets what from a console, and what a browser may do with it."""

import asyncio
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from uuid import uuid4

import httpx
import pytest
from harness.console import (
    OWASP,
    Structure,
    append,
    console,
    console_of,
    fetch,
    shop_routes,
    store_console,
    visited,
)
from harness.engines import connected
from harness.readers import NoReaders, Numbers, engine_of, kind, raising
from harness.shop import place
from harness.stalled import ask
from harness.statements import execute, scalars
from harness.stores import call, new_store
from harness.waiting import until
from harness.web import serving
from sqlalchemy import event
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from zeroeventhub import (
    FIRST,
    LAST,
    CursorStore,
    Event,
    FeedAuthorization,
    Principal,
    bearer_tokens,
    everybody,
)
from zeroeventhub.console import console_routes
from zeroeventhub.errors import ConfigurationError, Forbidden

PAGES = ("", "feeds/orders", "feeds/orders/events", "sign-in", "missing", "feeds/missing")
API = ("api/overview.json", "api/feeds/orders.json", "api/feeds/orders/events.json")
HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
JAVA = {"Accept": "text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2"}
TOKENS = {
    "operator-0123456789": "operator",
    "partition-0123456789": Principal(name="part", partitions={0}),
    "types-01234567890123": Principal(name="types", types={"paid"}),
}


def bearer(name):
    """Return the header of the token that begins with a name."""
    (token,) = (one for one in TOKENS if one.startswith(name))
    return {"Authorization": f"Bearer {token}"}


def test_every_answer_forbids_scripts_of_others(sqlite):
    """No answer of a console lets a browser run or load anything but the console's own files."""
    append(sqlite, {})
    with console(sqlite) as http:
        for path in (*PAGES, *API, "assets/console.js", "api/feeds/missing.json"):
            headers = http.get(path).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self';" in policy, path
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff", path
        for path in PAGES:
            text = http.get(path).text
            assert "<script>" not in text
            assert not re.search(r"\son[a-z]+=|style=|javascript:", text), path


def test_texts_of_requests_stay_texts(sqlite):
    """What a link puts into a page adds no element and no attribute to it either."""
    append(sqlite, {})
    with console(sqlite) as http:
        known = set()
        for path in ("feeds/orders/events", "feeds/orders/events?type=x", "feeds/orders", "x"):
            known |= {*Structure(http.get(path)).elements}
        for name in ("id", "type", "key", "cursor", "time", "zone", "limit"):
            for text in (OWASP[5], "".join(OWASP)):
                shown = Structure(http.get("feeds/orders/events", params={name: text}))
                assert {*shown.elements} <= known, (name, text)


def test_browser_is_sent_from_a_feed_to_its_page(sqlite):
    """A browser that opens a feed's address gets its page, and a program the same as ever."""
    append(sqlite, {})
    with console(sqlite) as http:
        feed = str(http.base_url.join("/orders"))
        opened = httpx.get(feed, headers=HTML, follow_redirects=True)
        assert opened.url.path == "/console/feeds/orders"
        assert "<h1>orders</h1>" in opened.text
        with serving(Starlette(routes=shop_routes(sqlite))) as url:
            for headers in ({}, {"Accept": "application/json"}, {"Accept": "*/*"}, JAVA):
                answer, alone = (httpx.get(one, headers=headers) for one in (feed, f"{url}/orders"))
                assert (answer.status_code, answer.content) == (200, alone.content)
        page = {"n": "1", "cursor0": "_first"}
        assert httpx.get(feed, headers=HTML, params=page).status_code == 200


@pytest.mark.parametrize(
    ("path", "prefix"),
    [
        ("/", ""),
        ("/admin/console", "/behind/a/proxy"),
        pytest.param("/", "/behind/a/proxy", marks=pytest.mark.test_all),
        pytest.param("/console", "", marks=pytest.mark.test_all),
        pytest.param("/console", "/behind/a/proxy", marks=pytest.mark.test_all),
        pytest.param("/admin/console", "", marks=pytest.mark.test_all),
    ],
)
def test_links_are_relative(sqlite, path, prefix):
    """Every link of every page works below any prefix, known to the application or not."""
    append(sqlite, {})
    routes = shop_routes(sqlite, path="/shop/orders")
    inner = [*routes, *console_routes(path, feeds={"orders": routes})]
    host = Starlette(routes=[Mount(prefix, routes=inner)] if prefix else inner)
    with serving(host) as url, httpx.Client(base_url=url, follow_redirects=True) as http:
        root = f"{prefix}{path}".rstrip("/")
        first = http.get(f"{prefix}/shop/orders", headers=HTML)
        assert first.url.path == f"{root}/feeds/orders"
        seen, ahead = set(), [http.get(f"{prefix}{path}").url, first.url]
        while ahead:
            answer = http.get(at := ahead.pop())
            assert answer.status_code == 200 or at.path.endswith("/sign-in"), at
            if not answer.headers["content-type"].startswith("text/html"):
                continue
            for link in Structure(answer).links:
                assert not link.startswith(("/", "http")), (at, link)
                further = at.join(link)
                if further.path not in seen:
                    seen.add(further.path)
                    ahead.append(further)
        assert {f"{root}/feeds/orders/events", f"{root}/assets/console.css"} <= seen


def test_feed_may_be_the_root_of_its_application(sqlite):
    """A feed whose path is "/" is shown as any other, and a browser is sent to its page."""
    append(sqlite, {})
    with console(sqlite, feed={"path": "/"}) as http:
        assert {http.get(path).status_code for path in (*PAGES[:3], *API)} == {200}
        assert fetch(http, "feeds/orders/events", id=1)["searched"] is None
        opened = http.get(http.base_url.join("/"), headers=HTML, follow_redirects=True)
        assert opened.url.path == "/console/feeds/orders"


def test_feed_alone_decides_what_is_seen(sqlite):
    """A reader sees in the console what the feed's own hook lets it read, and nothing else."""
    append(sqlite, *({"part": n % 2, "kind": ["paid", "placed"][n % 2]} for n in range(6)))
    feed = {"partitions": 2, "authorize": bearer_tokens(TOKENS)}
    with console(sqlite, feed=feed) as http:
        for path in ("feeds/orders", "feeds/orders/events", "api/feeds/orders.json"):
            assert http.get(path).status_code == 401
        whole = http.get(API[1], headers=bearer("operator")).json()
        assert [one["events"] for one in whole["partitions"]] == [3, 3]
        assert whole["horizon"]["settled"] == 6

        part = http.get(API[1], headers=bearer("partition")).json()
        assert [one["id"] for one in part["partitions"]] == [0]
        assert part["horizon"] is part["readers"] is part["registered"] is None
        hidden = http.get(f"{API[2]}?partition=1", headers=bearer("partition"))
        missing = http.get(f"{API[2]}?partition=7", headers=bearer("partition"))
        assert hidden.status_code == missing.status_code == 400
        assert hidden.json()["detail"] == missing.json()["detail"]
        for number, status in ((1, 200), (2, 400)):
            found = http.get(f"{API[2]}?id={number}", headers=bearer("partition"))
            assert found.status_code == status

        typed = http.get(API[1], headers=bearer("types")).json()
        assert [one["events"] for one in typed["partitions"]] == [None, None]
        shown = http.get(f"{API[2]}?partition=1", headers=bearer("types")).json()
        assert shown["events"] == []


def test_console_has_a_hook_of_its_own(sqlite):
    """A hook of the console refuses its pages and its API, also where the feed is public."""
    append(sqlite, {})
    with console(sqlite, authorize=raising(Forbidden("Not today."))) as http:
        assert {http.get(path).status_code for path in (*PAGES[:3], *API)} == {403}
        page = http.get("feeds/orders").text
        assert '<p role="alert">Not today.</p>' in page
        assert '<a href="../">Back to all feeds</a>' in page
        assert kind(http.get(API[0])) == "forbidden"
    with console(sqlite, authorize=NoReaders()) as http:
        assert {http.get(path).status_code for path in (*PAGES[:3], *API)} == {403}
    routes = shop_routes(sqlite)
    around = Middleware(FeedAuthorization, authorize=bearer_tokens(TOKENS))
    host = Starlette(
        routes=[*routes, *console_routes("/", feeds={"orders": routes})], middleware=[around]
    )
    with serving(host) as url:
        assert httpx.get(url).status_code == 401
        assert httpx.get(url, headers=bearer("operator")).status_code == 200


def test_person_signs_in_with_a_token(sqlite):
    """The token of a form becomes a cookie that no script reads, and that this console gets."""
    append(sqlite, {})
    with console(sqlite, feed={"authorize": bearer_tokens(TOKENS)}) as http:
        asked = http.get("feeds/orders")
        assert asked.status_code == 401
        assert asked.headers["www-authenticate"] == "Bearer"
        csrf = re.search(r'name="csrf" value="([^"]+)"', asked.text)[1]
        answer = http.post("sign-in", data={"token": "operator-0123456789", "csrf": csrf})
        assert answer.status_code == 303
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert "path=" not in cookie
        opened = http.get("feeds/orders")
        assert opened.status_code == 200
        assert "operator-0123456789" not in opened.text
        http.post("sign-in", data={"token": "", "csrf": csrf})
        assert http.get("feeds/orders").status_code == 401


@pytest.mark.parametrize(
    ("headers", "csrf"), [({}, ""), ({}, "x" * 43), ({"Sec-Fetch-Site": "cross-site"}, None)]
)
def test_form_of_another_site_is_refused(sqlite, headers, csrf):
    """A form counts only with the token of the page, and from no other site."""
    append(sqlite, {})
    with console(sqlite, feed={"authorize": bearer_tokens(TOKENS)}) as http:
        http.get("sign-in")
        kept = http.cookies["zeroeventhub_csrf"]
        form = {"token": "operator-0123456789", "csrf": kept if csrf is None else csrf}
        assert http.post("sign-in", data=form, headers=headers).status_code == 403
        assert http.get("feeds/orders").status_code == 401


@pytest.fixture
def stranger(postgresql):
    """Another user of the database, and its application, whose names are markup."""
    # Its name is one of the whole server, on which other tests may run.
    user, application = f"<img src='{uuid4()}'>", '"><script>alert(1)</script>'
    execute(postgresql, f"CREATE ROLE \"{user}\" SUPERUSER LOGIN PASSWORD 'secret'")
    url = postgresql.url.set(username=user, password="secret")
    with connected(url, application_name=application) as engine:
        yield engine, user, application
    execute(postgresql, f'DROP ROLE "{user}"')


def test_names_are_for_those_who_have_one(postgresql, stranger):
    """Who holds the horizon back is shown to a reader with a name, as text, and how long to all."""
    append(postgresql, {})

    def by_name(request):
        return Principal(name=request.headers.get("name", ""))

    def horizon(http, **headers):
        found = http.get(API[1], headers=headers).json()["horizon"]
        return found["age"] > 1 and found

    engine, *names = stranger
    # The process begins while the writer is open, so that no horizon is known.
    with engine.connect() as writer, console(postgresql, feed={"authorize": by_name}) as http:
        place(writer, 1)
        (blocker,) = until(lambda: horizon(http, name="ann"), "the horizon is late")["blockers"]
        assert [blocker["user"], blocker["application"]] == names
        assert datetime.fromisoformat(blocker["since"]) < datetime.now(UTC)
        assert horizon(http)["blockers"] == []
        shown, hidden = (
            http.get("feeds/orders", headers=one) for one in ({"name": "ann"}, {"name": ""})
        )
        assert {*names} <= {*Structure(shown).texts}
        assert not any(name in shown.text for name in names)
        assert not {*names} & {*Structure(hidden).texts}


@pytest.mark.parametrize("name", ["", "a/b", "é", "<b>", "x" * 101])
def test_name_has_a_form(name):
    """A name that cannot be a part of an address is refused at the start."""
    with pytest.raises(ConfigurationError, match="cannot be a name in a console"):
        console_routes("/console", feeds={name: []})


def test_what_is_no_feed_is_refused():
    """A console says which of its feeds is none."""
    with pytest.raises(ConfigurationError, match="'orders' is neither"):
        console_routes("/console", feeds={"orders": []})


SLOW = {
    "sqlite": "EXISTS (WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n) "
    "SELECT 1 FROM n WHERE i < 0)",
    "postgresql": "pg_sleep({}) IS NOT NULL",
    "mariadb": "SLEEP({}) = 0",
}
"""Conditions that take some seconds, of SQLite for ever."""


def slow_store(engine, seconds=60):
    """Make a store with a consumer, whose cursors are read slowly."""
    store = new_store(engine)
    call(store, store.set, 0, FIRST)
    slow = SLOW[engine.dialect.name].format(seconds)
    execute(
        engine,
        "ALTER TABLE zeroeventhub_cursors RENAME TO kept",
        f"CREATE VIEW zeroeventhub_cursors AS SELECT * FROM kept WHERE {slow}",
    )
    return store


def test_long_statement_is_ended(any_engine, monkeypatch, caplog):
    """A statement in a store that takes too long is ended, and page and API say so."""
    monkeypatch.setattr("zeroeventhub.console.consumers.STATEMENT_SECONDS", 0.2)
    with store_console(slow_store(any_engine)) as http:
        page, document = http.get(""), http.get("api/overview.json")
    assert (page.status_code, document.status_code) == (503, 503)
    said = "A statement in the store billing took longer than it may."
    assert said in page.text
    assert document.json()["detail"] == said
    assert re.search(r"the id <code>([^<]+)</code>", page.text)[1] in caplog.text


@pytest.mark.parametrize("kind", ["sync", pytest.param("async", marks=pytest.mark.test_all)])
def test_store_gives_two_connections(postgresql, kind):
    """Ten pages that are asked for at once use two connections of a store."""
    slow_store(postgresql, seconds=0.05)
    engine = engine_of(kind, postgresql, connect_args={"application_name": "console"})
    with store_console(CursorStore(engine)) as http, ThreadPoolExecutor(10) as pool:
        answers = [*pool.map(http.get, [""] * 10)]
        assert {answer.status_code for answer in answers} == {200}
        # The pool of the engine keeps five, had there been so many.
        used = (
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'console'"
        )
        assert scalars(postgresql, used) == [2]


def test_missing_page_is_not_long(sqlite):
    """Without a sign-in, an address with many slashes gets no longer answer than itself."""
    with console(sqlite) as http:
        for slashes in (3, 10_000):
            missing = http.get(f"missing{'/' * slashes}")
            assert missing.status_code == 404
            assert len(missing.content) < 2_000


def test_pages_that_nobody_reads_are_bounded():
    """While readers leave large pages unread, another one is refused, and a small one is not."""

    class Large(Numbers):
        def _page(self, cursor, limit, count):
            page = super()._page(cursor, limit, count)
            return replace(page, events=[Event(b'"%b"' % (b"x" * 60_000)) for _ in page.events])

    with console_of(Large(500)) as http, ExitStack() as unread:
        path, large = "api/feeds/orders/events.json", {"limit": 250}
        for _ in range(2):
            reader = unread.enter_context(ask(f"{http.base_url}{path}?limit=250", room=4096))
            assert reader.recv(12) == b"HTTP/1.1 200"
        refused = http.get(path, params=large)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert http.get(path, params={"limit": 1}).status_code == 200
        unread.close()
        until(lambda: http.get(path, params=large).status_code == 200, "there is room again")


def test_nothing_goes_on_after_the_last_page(sqlite):
    """When the pages are closed, no task and no connection is left, and no statement is sent."""
    append(sqlite, {})
    store = new_store(sqlite)
    call(store, store.set, 0, FIRST)
    routes = shop_routes(sqlite)
    console = console_routes(
        "/", feeds={"orders": routes}, stores={"billing": store}, authorize=everybody
    )

    async def tasks(_):
        return JSONResponse(len(asyncio.all_tasks()))

    with visited([Route("/tasks", tasks), *routes, *console]) as http:
        before = http.get("tasks").json()
        for path in ("", "feeds/orders", "stores/billing/consumer?name=billing"):
            assert http.get(path).status_code == 200
        head = http.get(API[2], params={"cursor": LAST}).json()["next"]
        with pytest.raises(httpx.ReadTimeout):
            http.get(API[2], params={"cursor": head, "wait": 15}, timeout=0.2)
        until(lambda: http.get("tasks").json() == before, "tasks have ended")
        sent = []
        event.listen(sqlite, "before_cursor_execute", lambda *one: sent.append(one[2]))
        time.sleep(0.3)
        assert (sent, http.get("tasks").json(), sqlite.pool.checkedout()) == ([], before, 0)
