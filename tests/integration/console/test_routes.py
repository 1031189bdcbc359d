"""Who gets what from a console, and what a browser may do with it."""

import json
import re
from datetime import UTC, datetime

import httpx
import pytest
from harness.console import OWASP, Structure, append, console, shop_routes
from harness.readers import kind, raising
from harness.shop import place
from harness.waiting import until
from harness.web import serving
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount

from zeroeventhub import FeedAuthorization, Principal, bearer_tokens
from zeroeventhub.console import console_routes
from zeroeventhub.errors import ConfigurationError, Forbidden

PAGES = ("", "feeds/orders", "feeds/orders/events", "sign-in", "missing", "feeds/missing")
API = ("api/overview.json", "api/feeds/orders.json", "api/feeds/orders/events.json")
HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
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


@pytest.mark.parametrize("field", ["data", "kind", "customer"])
def test_texts_of_events_stay_texts(sqlite, field):
    """A page has the same elements and attributes, whatever an event's fields hold."""
    append(sqlite, *({field: f"harmless {number}"} for number, _ in enumerate(OWASP)))
    with console(sqlite) as http:
        harmless = Structure(http.get("feeds/orders/events"))
        with sqlite.begin() as connection:
            connection.exec_driver_sql("DELETE FROM orders")
        append(sqlite, *({field: text} for text in OWASP))
        shown = Structure(http.get("feeds/orders/events"))
        assert shown.elements == harmless.elements
        texts = " ".join(shown.texts)
        assert all(json.dumps(text) in texts for text in OWASP)


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
            for headers in ({}, {"Accept": "application/json"}, {"Accept": "*/*"}):
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
        assert "Not today." in http.get("").text
        assert kind(http.get(API[0])) == "forbidden"
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


def test_names_are_for_those_who_have_one(postgresql):
    """Who holds the horizon back is shown to a reader with a name, and how long to all."""
    append(postgresql, {})

    def by_name(request):
        return Principal(name=request.headers.get("name", ""))

    def horizon(http, **headers):
        found = http.get(API[1], headers=headers).json()["horizon"]
        return found["age"] > 1 and found

    # The process begins while the writer is open, so that no horizon is known.
    with postgresql.connect() as writer, console(postgresql, feed={"authorize": by_name}) as http:
        writer.exec_driver_sql("SET application_name = 'importer'")
        place(writer, 1)
        (blocker,) = until(lambda: horizon(http, name="ann"), "the horizon is late")["blockers"]
        assert (blocker["application"], blocker["user"]) == ("importer", "postgres")
        assert datetime.fromisoformat(blocker["since"]) < datetime.now(UTC)
        assert horizon(http)["blockers"] == []
        assert "importer" in http.get("feeds/orders", headers={"name": "ann"}).text
        assert "importer" not in http.get("feeds/orders").text


@pytest.mark.parametrize("name", ["", "a/b", "é", "x" * 101])
def test_name_has_a_form(name):
    """A name that cannot be a part of an address is refused at the start."""
    with pytest.raises(ConfigurationError, match="cannot be a name in a console"):
        console_routes("/console", feeds={name: []})


def test_what_is_no_feed_is_refused():
    """A console says which of its feeds is none."""
    with pytest.raises(ConfigurationError, match="'orders' is neither"):
        console_routes("/console", feeds={"orders": []})
