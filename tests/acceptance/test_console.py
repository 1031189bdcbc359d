"""What people do with a console, in a real browser."""

import json
import re
import runpy
import ssl
import sys
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
import trustme
from harness.browser import launched, violations
from harness.command_line import started
from harness.console import OWASP, Structure, append, console, lagging, shop_routes
from harness.engines import connected
from harness.guides import guide
from harness.nginx_paths import nginx, reserved_port
from harness.shop import fill, orders, place, write
from harness.stores import call, new_store
from harness.waiting import until
from harness.web import serving
from starlette.applications import Starlette

from zeroeventhub import (
    FIRST,
    Client,
    ConnectionPool,
    Consumer,
    Event,
    Failures,
    Principal,
    TableFeed,
    bearer_tokens,
    everybody,
)
from zeroeventhub.console import console_routes, feeds
from zeroeventhub.console.routes import VIEWS

ROOT = Path(__file__).parents[2]
EXAMPLES, PICTURES = ROOT / "examples", ROOT / "docs" / "console"
PART, TOKEN = "partition-0123456789", "operator-0123456789"


@pytest.fixture(scope="module")
def browser():
    """A tab of a headless browser that the tests of this file share."""
    with launched() as tab:
        yield tab


def test_guide_names_every_address(sqlite):
    """The guide's console runs, and its table of the API has every address with its parameters."""
    append(sqlite, {})
    text = (PICTURES.parent / "console.md").read_text()
    named = re.findall(r"^\| `(api/[^`]+)` \|", text, re.MULTILINE)
    paths = {"/overview" if view.path == "/" else view.path for view in VIEWS}
    assert {f"api{path}.json" for path in paths} == {*named}
    feed = TableFeed(orders, data="data")
    with (
        guide("console.md", feed=feed, engine=sqlite) as piece,
        serving(piece("mounted")["app"]) as url,
    ):
        answer = httpx.get(f"{url}/console/api/overview.json").json()
    assert [one["name"] for one in answer["feeds"]] == ["orders"]


def test_example_has_operators(monkeypatch, tmp_path):
    """The example shows its console, with consumers, to who has the token, and the feed to all."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORDERS_SECRET", "a secret of sixteen characters or more")
    monkeypatch.setenv("OPERATOR_TOKEN", "operator-0123456789")
    monkeypatch.syspath_prepend(EXAMPLES)
    sys.modules.pop("shop", None)
    found = runpy.run_path(str(EXAMPLES / "console_publisher.py"))
    with serving(found["app"]) as url:
        assert httpx.get(f"{url}/orders").status_code == 200
        assert httpx.get(f"{url}/console/").status_code == 401
        with httpx.Client(base_url=f"{url}/console/", follow_redirects=True) as http:
            (csrf,) = re.findall(r'name="csrf" value="([^"]+)"', http.get("").text)
            form = {"token": "operator-0123456789", "csrf": csrf}
            answer = http.post("sign-in", data=form)
        assert "There are none yet. A consumer is shown" in answer.text
    found["engine"].dispose()


PROXY = """
server {{
    listen 127.0.0.1:{port} reuseport ssl;
    ssl_certificate {folder}/server.pem;
    ssl_certificate_key {folder}/server.key;
    location /behind/a/proxy/ {{
        proxy_pass {console}/;
        proxy_set_header Host $http_host;
        proxy_set_header X-Forwarded-Proto $scheme;
    }}
}}
"""


@contextmanager
def behind_nginx(url, folder):
    """Let an nginx serve an application through TLS below a prefix; yield a client of the prefix.

    The client follows redirections, as a browser does.
    """
    authority, trusted = trustme.CA(), ssl.create_default_context()
    authority.configure_trust(trusted)
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(folder / "server.pem")
    certificate.private_key_pem.write_to_path(folder / "server.key")
    with reserved_port() as port:
        base = f"https://127.0.0.1:{port}/behind/a/proxy/"
        with (
            nginx(PROXY.format(port=port, folder=folder, console=url), port),
            httpx.Client(base_url=base, verify=trusted, follow_redirects=True) as http,
        ):
            yield http


def form_of(answer):
    """Return the fields of the last form of a page."""
    return dict(Structure(answer).fields)


def test_console_works_behind_a_proxy(sqlite, billing, tmp_path):
    """Below a prefix of nginx, which terminates TLS, people find the console and sign in safely."""
    append(sqlite, *({} for _ in range(3)))
    (store,) = billing["stores"].values()
    call(store, store.dead_letters.add, 0, Event.of({}), key="a", error=ValueError("No."), tries=1)
    call(store, store.set, 0, FIRST)
    hook = bearer_tokens({TOKEN: "operator"})
    options = {**billing, "authorize": hook, "allow_changes": True, "feed": {"authorize": hook}}
    with (
        console(sqlite, **options) as direct,
        behind_nginx(str(direct.base_url.join("/")).rstrip("/"), tmp_path) as http,
    ):
        asked = http.get("orders", headers={"Accept": "text/html,application/xhtml+xml"})
        assert asked.url.path == "/behind/a/proxy/console/feeds/orders"
        sign_in = asked.url.join(Structure(asked).links[-1])
        opened = http.post(sign_in, data={**form_of(asked), "token": TOKEN})
        assert (opened.status_code, opened.url.path) == (200, "/behind/a/proxy/console/")
        kept = {cookie.name: (cookie.secure, cookie.path) for cookie in http.cookies.jar}
        own = "/behind/a/proxy/console"
        assert kept == {"zeroeventhub_csrf": (True, "/"), "zeroeventhub_console": (True, own)}

        name = {"name": "billing"}
        consumer = http.get("console/stores/billing/consumer", params=name)
        question = consumer.url.join("confirm")
        asked = http.get(question, params={**name, "action": "discard"})
        for answer in (opened, consumer, asked):
            links = Structure(answer).links
            assert not [link for link in links if link.startswith(("/", "http"))], answer.url
        done = http.post(question.join("change"), data=form_of(asked))
        assert done.url.path == "/behind/a/proxy/console/stores/billing/consumer"
        assert "Done." in done.text
        assert call(store, store.dead_letters.letters) == []


@pytest.mark.parametrize(
    ("address", "scheme", "secure"),
    [("127.0.0.1", "https", True), ("127.0.0.1", "http", False), ("127.0.0.2", "https", False)],
)
def test_scheme_is_believed_of_a_proxy(sqlite, address, scheme, secure):
    """X-Forwarded-Proto marks cookies as secure if it comes from this machine's own proxy."""
    append(sqlite, {})
    transport = httpx.HTTPTransport(local_address=address)
    with console(sqlite) as http, httpx.Client(transport=transport) as proxy:
        answer = proxy.get(http.base_url, headers={"X-Forwarded-Proto": scheme})
        assert ("; Secure" in answer.headers["set-cookie"]) == secure


@pytest.fixture
def picture(request):
    """A function that takes the screenshots of the guide, where they are asked for."""

    def take(page, name):
        if request.config.getoption("--screenshots"):
            page.screenshot(path=PICTURES / f"{name}.png")

    return take


@pytest.fixture
def billing(tmp_path):
    """The options of a console that shows a store to everybody."""
    with connected(f"sqlite:///{tmp_path / 'billing.db'}") as engine:
        yield {"stores": {"billing": new_store(engine)}, "authorize": everybody}


def stand(http, options, name, *, events, partitions=2):
    """Let a consumer have read some events of each partition."""
    store = options["stores"]["billing"]
    for number in range(partitions):
        query = {"partition": number, "limit": events}
        page = http.get("api/feeds/orders/events.json", params=query).json()
        call(store, store.set, number, page["next"], name=name)
    if name == "statistics":
        call(store, store.leases.claim, "worker-1", [0, 1], seconds=30, share=True, name=name)


def troubled(http, options):
    """Let a consumer of long names have halted, with dead letters; return its name."""
    store, name = options["stores"]["billing"], "n" * 200
    stand(http, options, name, events=1)
    with pytest.raises(LookupError) as failed:
        raise LookupError("e" * 200)
    event, key = Event.of({"text": "d" * 200}, {"trace": "t" * 200}), "k" * 200
    for error in (failed.value, None):
        call(store, store.dead_letters.add, 0, event, key=key, error=error, tries=1, name=name)
    place = call(store, store.load, 1, name=name)
    failure = {"error": failed.value, "tries": 3, "pause": None}
    call(store, store.record_failure, 1, place, **failure, name=name)
    return name


def rows(page, table):
    """Return the texts of a table's cells, row by row."""
    return [
        row.locator("th, td").all_inner_texts() for row in page.locator(f"{table} tbody tr").all()
    ]


def test_newcomer_opens_the_address(browser, sqlite, sqlite_url, picture):
    """What serve says to open shows the feed, and a first event once there is one."""
    fill(sqlite, 0)
    options = ("--database", sqlite_url, "--table", "orders", "--data", "data", "--port", 0)
    with started("serve", *options, "--path", "/orders") as process:
        said = [process.stdout.readline() for _ in range(3)]
        url = said[2].removeprefix("Open: ").strip()
        with httpx.Client(base_url=url) as http, browser.at(http) as page:
            browser.open("")
            page.get_by_role("link", name="orders", exact=True).click()
            page.get_by_text("There is no event yet.").wait_for()
            write(sqlite)
            browser.open("/orders")
            assert page.url == f"{url}feeds/orders"
            page.get_by_role("navigation").get_by_role("link", name="Events").click()
            assert '"n": 0' in page.locator("pre").first.inner_text()


def test_event_is_found_by_its_id(browser, sqlite, picture):
    """An event is found by its id, beside its raw line, and programs are told how to get it."""
    append(sqlite, *({"customer": f"c{n % 3}", "data": {"n": n}} for n in range(200)))
    with console(sqlite) as http, browser.at(http) as page:
        browser.open("feeds/orders/events")
        page.get_by_label("Id", exact=True).fill("117")
        page.get_by_role("button", name="Show").click()
        found = page.get_by_role("article", name="Event 117")
        assert '"n": 116' in found.inner_text()
        assert "id=117" in page.url
        time = found.locator("time")
        shown = datetime.fromisoformat(time.get_attribute("datetime"))
        assert time.get_attribute("title").startswith(shown.strftime("%Y-%m-%dT%H:%M:%S"))
        picture(page, "events")
        page.get_by_text("As curl").click()
        feed = str(http.base_url.join("/orders"))
        assert f"curl '{feed}/events?" in page.locator(".programs pre").first.inner_text()


@pytest.mark.test_all
def test_blocked_horizon_names_its_transaction(browser, postgresql, picture):
    """A writer that stays open is named with its application and since when it is open."""
    append(postgresql, *({} for _ in range(20)))
    with console(postgresql, authorize=everybody) as http:
        http.get("feeds/orders")  # the horizon is known from here on
        with postgresql.connect() as writer, browser.at(http) as page:
            writer.exec_driver_sql("SET application_name = 'nightly-import'")
            place(writer, 1)
            browser.open("feeds/orders")
            row = page.get_by_role("row", name=re.compile("nightly-import"))
            row.wait_for()
            since = datetime.fromisoformat(row.locator("time").first.get_attribute("datetime"))
            assert since < datetime.now(UTC)
            picture(page, "horizon")


def test_reader_sees_nothing_of_a_hidden_partition(browser, sqlite):
    """Who signs in with a token for one partition sees neither the other nor its events."""
    append(sqlite, *({"part": n % 2, "data": {"secret": n % 2}} for n in range(6)))
    hook = bearer_tokens({PART: Principal(name="part", partitions={0})})
    feed = {"partitions": 2, "authorize": hook}
    with console(sqlite, feed=feed) as http, browser.at(http) as page:
        browser.open("feeds/orders")
        page.get_by_label(re.compile("The token")).fill(PART)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("link", name="orders", exact=True).click()
        assert [row[0] for row in rows(page, "#partitions")] == ["0"]
        for path in ("feeds/orders/events", "feeds/orders/events?id=2", "feeds/orders?partition=1"):
            browser.open(path)
            assert '"secret": 1' not in page.content()
            assert '"secret":1' not in page.content()


@pytest.mark.test_all
def test_lagging_consumer_is_seen(browser, sqlite, billing, picture):
    """A consumer that does not keep up stands out, with how far it is behind and where it is."""
    append(sqlite, *({"part": n % 2} for n in range(400)), ago=7200, step=10)
    with console(sqlite, feed={"partitions": 2}, **billing) as http, browser.at(http) as page:
        stand(http, billing, "invoices", events=30)
        stand(http, billing, "statistics", events=180)
        browser.open("")
        page.get_by_role("cell", name=re.compile("^340, 1.8 h")).wait_for()
        picture(page, "overview")
        page.get_by_role("link", name="invoices").click()
        page.get_by_role("img", name=re.compile("Lag in events")).wait_for()
        assert violations(page) == []
        assert [row[1] for row in rows(page, "#partitions")] == ["170", "170"]
        picture(page, "consumer")


@pytest.mark.test_all
def test_dead_letter_is_retried_and_gone(browser, sqlite, billing, picture):
    """A person reads why an event was set aside, retries it once that is mended, and it is gone."""
    append(sqlite, *({"data": {"n": n}, "customer": f"c{n}"} for n in range(5)))
    mended, (store,) = threading.Event(), billing["stores"].values()

    def invoice(connection, event: Event):
        if event.data["data"]["n"] == 2 and not mended.is_set():
            raise LookupError("The price of article 17 is missing.")

    with (
        console(sqlite, allow_changes=True, **billing) as http,
        ConnectionPool() as pool,
        browser.at(http) as page,
    ):
        failures = Failures(tries=1, then="set-aside")
        client = Client(str(http.base_url.join("/orders")), pool)
        consumer = Consumer(client, store, "invoices", failures=failures)
        thread = threading.Thread(target=consumer.run, args=[invoice])
        thread.start()
        try:
            until(lambda: call(store, store.dead_letters.letters, name="invoices"), "it is aside")
            browser.open("")
            page.get_by_role("link", name="invoices").click()
            page.locator("#letters").get_by_role("link", name="1").click()
            assert "The price of article 17" in page.get_by_label("The error").inner_text()
            assert "in invoice" in page.get_by_label("The traceback").inner_text()
            picture(page, "dead_letter")
            mended.set()
            page.get_by_role("button", name="Retry").click()
            assert "as soon as it runs: 1." in page.locator("#consequence").inner_text()
            picture(page, "confirm")
            assert violations(page) == []
            page.get_by_role("button", name="Yes, do it").click()
            page.get_by_role("status").filter(has_text="Done.").wait_for()
            page.get_by_text("There are none.").wait_for()
            page.get_by_role("link", name="Audit log").first.click()
            assert "invoices" in rows(page, "#audit")[0]
        finally:
            consumer.stop()
            thread.join()


@pytest.mark.test_all
def test_live_view_goes_on_after_a_restart(browser, sqlite):
    """Events that are committed appear by themselves, also after the server was away."""
    append(sqlite, {})

    def application():
        routes = shop_routes(sqlite)
        return Starlette(routes=[*routes, *console_routes("/", feeds={"orders": routes})])

    with (
        reserved_port() as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}/") as http,
        browser.at(http) as page,
    ):
        with serving(application(), port):
            browser.open("feeds/orders/events")
            page.get_by_role("link", name="Follow live").click()
            page.get_by_text("Following:").wait_for()
            append(sqlite, {"data": {"n": "before"}})
            page.get_by_text('"n": "before"').first.wait_for()
        append(sqlite, {"data": {"n": "meanwhile"}})
        page.get_by_text("The server does not answer").wait_for()
        with serving(application(), port):
            page.get_by_text('"n": "meanwhile"').first.wait_for()
            append(sqlite, {"data": {"n": "after"}})
            page.get_by_text('"n": "after"').first.wait_for()
            shown = page.locator("article").all_inner_texts()
            assert ["after" in shown[0], len(shown)] == [True, 3]


@pytest.mark.test_all
def test_event_with_a_script_is_text(browser, sqlite):
    """A browser runs no script of an event's fields or of an address."""
    append(
        sqlite, *({"data": {"x": text}, "kind": text[:40], "customer": text[:40]} for text in OWASP)
    )
    with console(sqlite) as http, browser.at(http) as page:
        asked = []
        page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
        for query in ("", "?follow=1&cursor=_first"):
            browser.open(f"feeds/orders/events{query}")
            page.locator("article").nth(len(OWASP) - 1).wait_for()
            assert asked == []
        assert json.dumps(OWASP[0]) in page.content().replace("&lt;", "<").replace("&gt;", ">")


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("light", 380),
        pytest.param("dark", 380, marks=pytest.mark.test_all),
        pytest.param("light", 2560, marks=pytest.mark.test_all),
        pytest.param("dark", 2560, marks=pytest.mark.test_all),
    ],
)
def test_everybody_can_use_it(browser, sqlite, billing, scheme, width):
    """No page has a serious violation of axe-core, nor scrolls sideways, in any width."""
    append(sqlite, *({"part": n % 2, "data": {"text": "d" * 200}} for n in range(9)))
    options = {"feed": {"partitions": 2}, "allow_changes": True, **billing}

    def look():
        assert violations(page) == [], page.url
        assert page.evaluate("document.documentElement.scrollWidth") <= width, page.url

    with console(sqlite, **options) as http, browser.at(http, width, scheme) as page:
        name = troubled(http, options)
        of_name = f"?name={name}&id=1"
        for path in (
            *("", "feeds/orders", "feeds/orders/events", "sign-in", "missing"),
            *(f"stores/billing/{path}{of_name}" for path in ("consumer", "dead-letter")),
            *(f"stores/billing/confirm{of_name}&action={act}" for act in ("reset", "retry")),
        ):
            browser.open(path)
            look()
        page.get_by_role("button", name="Yes, do it").click()
        page.get_by_role("link", name="audit log", exact=True).click()
        page.get_by_role("table", name="The last changes").wait_for()
        look()


@pytest.mark.test_all
def test_last_hours_are_plotted(browser, sqlite):
    """A partition's events a second are a plot, whose last value can be read aloud."""
    append(sqlite, *({} for _ in range(100)), ago=3000, step=10)
    with console(sqlite) as http, browser.at(http) as page:
        browser.open("feeds/orders")
        plot = page.get_by_role("img", name=re.compile("Events a second in partition 0: now"))
        plot.locator("canvas").wait_for()
        page.get_by_label("Hours").select_option("24")
        plot.wait_for()
        assert "hours=24" in page.url
        assert violations(page) == []


@pytest.mark.test_all
def test_past_of_a_lag_is_plotted(browser, sqlite, monkeypatch):
    """The plot of a registered consumer's lag has its past as soon as the page is opened."""
    monkeypatch.setattr(feeds, "SLOT", 0.5)
    with lagging(sqlite) as (_, http), browser.at(http) as page:
        until(
            lambda: http.get("api/feeds/orders/lags.json").json()["times"][2:], "slots have ended"
        )
        browser.open("feeds/orders")
        # Sooner than the next refresh, with which a plot without a past begins.
        plot = page.get_by_role("img", name=re.compile("Lag of registered.*billing 3"))
        plot.wait_for(timeout=4_000)


@pytest.mark.test_all
def test_keyboard_reaches_everything(browser, sqlite):
    """The first Tab skips to the content, and a table is sorted from the keyboard."""
    append(sqlite, *({"part": 0 if n < 7 else 1} for n in range(9)))
    with console(sqlite, feed={"partitions": 2}) as http, browser.at(http) as page:
        browser.open("feeds/orders")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        header = page.locator("#partitions").get_by_role("button", name="Events", exact=True)
        header.focus()
        page.keyboard.press("Enter")
        assert [row[1] for row in rows(page, "#partitions")] == ["2", "7"]
        page.keyboard.press("Enter")
        assert [row[1] for row in rows(page, "#partitions")] == ["7", "2"]
        assert page.locator("th[aria-sort=descending]").inner_text().startswith("Events")
