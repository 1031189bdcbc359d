"""What `zeroeventhub serve` serves, and what it refuses before it listens."""

import gc
import json
import os
import socket
import sqlite3
from contextlib import closing
from hashlib import sha256

import httpx
import pytest
from harness.appended import batch, made
from harness.command_line import invoke
from harness.readers import client_of, get
from harness.shop import fill, write
from harness.statements import execute, scalars
from harness.web import serving
from sqlalchemy import create_engine, inspect

from zeroeventhub import FIRST, NewEvent, Retention
from zeroeventhub.cli.serve import worker
from zeroeventhub.errors import ConfigurationError, Forbidden, Unauthorized

FEED = "database = 'env:SHOP'\ntable = 'orders'\n"
SHOP = ["--database", "env:SHOP", "--table", "orders"]
MODULE = """\
from starlette.applications import Starlette

from zeroeventhub import FeedInfo, Page, feed_routes


class Numbers:
    def info(self):
        return FeedInfo.of(1)

    def read(self, partition, cursor, limit):
        return Page([], "0")


feeds = {"numbers": Numbers()}
app = Starlette(routes=feed_routes("/mine", Numbers()))
number = 5
"""
BILLING, AUDIT, OLD = ("b" * 43, "a" * 43, "o" * 43)


def hashed(token):
    """The hash of a token."""
    return f"sha256:{sha256(token.encode()).hexdigest()}"


def bearer(token):
    """The headers of who has a token."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


@pytest.fixture
def here(sqlite, sqlite_url, empty_folder, monkeypatch):
    """A working directory with a module, and the variable of a shop's database."""
    fill(sqlite, 2)
    monkeypatch.setenv("SHOP", sqlite_url)
    monkeypatch.syspath_prepend(empty_folder)
    (empty_folder / "numbers_of_mine.py").write_text(MODULE)
    (empty_folder / "tokens.toml").write_text(
        f"billing = ['{hashed(BILLING)}']\naudit = ['{hashed(AUDIT)}']\n"
    )
    return empty_folder


@pytest.fixture
def served(here, monkeypatch):
    """A function that serves what a command line asks for, as one of its workers does."""

    def served(*arguments):
        monkeypatch.setenv("ZEROEVENTHUB_WORKER", json.dumps([False, arguments]))
        return serving(worker())

    yield served
    gc.unfreeze()


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        (f"[feeds.a]\n{FEED}trim = {{}}\n", [], "feeds.a: Table 'zeroeventhub_retention' has no"),
        (
            f"[feeds.a]\n{FEED}seal = {{ every = '1h' }}\n",
            [],
            "line 4, feeds.a.seal: seal needs a feed with archive",
        ),
        (f"[feeds.a]\n{FEED}tidy = {{ every = '1h' }}\n", [], "tidy needs a feed with archive"),
        (f"[feeds.a]\n{FEED}compact = {{ every = '1d' }}\n", [], "needs a feed with compacted"),
        (f"[feeds.a]\n{FEED}tidy = {{ every = '0s' }}\n", [], "every has to be more than zero"),
        ("", [], "zeroeventhub.toml describes no feeds."),
        ("", ["numbers_of_mine:nothing"], "not found in module"),
        ("", ["nothing_of_mine:feeds"], "Could not import module"),
        ("", ["numbers_of_mine:number"], "is neither a mapping of feeds nor an application"),
        ("", ["numbers_of_mine:feeds", "--table", "x"], "leave out those options"),
        ("", ["numbers_of_mine:feeds", "--log", "x"], "leave out --log, or FEED"),
        ("", ["--log", "x", "--table", "y"], "Give --log or --table, not both."),
        ("", ["--log", "x", "--data", "y"], "A log has columns of its own"),
        ("", [*SHOP, "--path", "m", "--metrics", "/m"], "The path /m is that of --metrics."),
        ("", ["numbers_of_mine:app", "--arrow"], "chooses itself"),
        ("", ["numbers_of_mine:app", "--help-url", "https://x"], "chooses itself"),
        ("", ["numbers_of_mine:feeds", "--help-url", "errors.html"], "help_url is the address"),
        ("", ["numbers_of_mine:feeds", "--server-sent-events"], "needs a feed that has head()"),
    ],
)
def test_server_that_cannot_serve_is_refused(here, text, arguments, words):
    """A refusal is a sentence before anything listens; it names the feed of the file."""
    (here / "zeroeventhub.toml").write_text(text)
    result = invoke("serve", *arguments, "--public", "--host", "192.0.2.1")  # not this machine
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


def test_problems_name_the_page_of_errors(here, served):
    """The file of feeds says where the page of errors is, for its feeds and their console."""
    page = "https://docs.example/errors.html"
    (here / "zeroeventhub.toml").write_text(f"[serve]\nhelp_url = '{page}'\n[feeds.a]\n{FEED}")
    with served() as url:
        for path in ("/a/events?partition=9", "/api/feeds/none.json"):
            problem = httpx.get(f"{url}{path}").json()
            kind = problem["type"].rpartition("/")[2]
            assert problem["help"] == f"{page}#{kind}"


def test_readers_see_what_the_file_lets_them_see(here, sqlite, served):
    """Each token reads its part, no page is for shared caches, and metrics need a token too."""
    write(sqlite, 98, first=2)
    execute(sqlite, "UPDATE orders SET kind = 'paid' WHERE id % 10 = 0")
    feed = f"{FEED}data = 'data'\ntype = 'kind'\n"
    (here / "zeroeventhub.toml").write_text(
        f"[serve]\ntoken_file = 'tokens.toml'\nmetrics = '/metrics'\n"
        f"[feeds.orders]\n{feed}readers = {{ billing = {{ types = ['paid'] }} }}\n"
        f"[feeds.all]\n{feed}path = 'shop/all'\n"
    )
    expected = {
        ("/orders", BILLING): (200, 10),
        ("/orders", AUDIT): (403, None),
        ("/orders", OLD): (401, None),
        ("/shop/all", AUDIT): (200, 100),
        ("/shop/all", None): (401, None),
    }
    with served() as url:
        for (path, token), (status, events) in expected.items():
            answer = get(url + path, pagesizehint=1000, headers=bearer(token))
            assert answer.status_code == status
            assert events is None or len(answer.text.splitlines()) == events + 1
            assert "public" not in answer.headers.get("cache-control", "")
        assert httpx.get(f"{url}/metrics").headers["www-authenticate"] == "Bearer"
        counted = 'events_total{feed="all",route="events"} 100.0'
        assert counted in httpx.get(f"{url}/metrics", headers=bearer(AUDIT)).text


@pytest.mark.parametrize(("place", "path"), [("feeds", "/numbers"), ("app", "/mine")])
def test_feeds_that_python_makes_are_served(served, place, path):
    """A mapping of feeds and an application are served, and behind tokens if there are any."""
    with served(f"numbers_of_mine:{place}") as url:
        assert get(url + path).status_code == 200
    with served(f"numbers_of_mine:{place}", "--token-file", "tokens.toml") as url:
        assert get(url + path).status_code == 401
        assert get(url + path, headers=bearer(AUDIT)).status_code == 200


def test_garbage_collector_leaves_out_what_is_loaded(served):
    """The collector does not look at imported code again and again while requests wait."""
    with served("numbers_of_mine:feeds"):
        assert gc.get_freeze_count() > 10_000


def test_options_are_of_all_feeds_of_the_file(here, served):
    """An option that is given beside the file holds for each feed."""
    feeds = "".join(f"[feeds.{name}]\n{FEED}" for name in ("one", "two"))
    (here / "zeroeventhub.toml").write_text(feeds)
    with served("--columns", "id") as url:
        for name in ("one", "two"):
            assert get(f"{url}/{name}").text.startswith('{"data":{"id":1}}\n')


def test_feeds_of_a_database_share_its_connections(
    here, postgresql, postgresql_url, served, monkeypatch
):
    """Idle feeds keep no connections of their own."""
    fill(postgresql, 2)
    monkeypatch.setenv("SHOP", postgresql_url)
    names = [f"shop{number}" for number in range(20)]
    (here / "zeroeventhub.toml").write_text("".join(f"[feeds.{one}]\n{FEED}" for one in names))
    count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    (before,) = scalars(postgresql, count)
    with served() as url:
        for name in names:
            assert get(f"{url}/{name}").status_code == 200
        (after,) = scalars(postgresql, count)
    assert after - before < 10


def test_log_is_made_and_appended_to(here, served):
    """A log without more words is a file beside, whose events are there after a restart."""
    for first in (0, 10):
        with (
            served("--log", "shop_log", "--cloudevents") as url,
            client_of(f"{url}/events") as client,
        ):
            client.append(batch(10, first=first))
            events = client.fetch(0, FIRST).events
            assert [event.data["id"] for event in events] == [f"e{n}" for n in range(first + 10)]
    assert (here / "shop_log.db").exists()


def test_sites_reach_nothing_through_a_browser(here, served):
    """A server without tokens refuses names that somebody else lets point to this machine."""
    line = b'{"id": "a", "type": "t", "data": {}}'
    headers = {"Host": "attacker.example", "Content-Type": "application/x-ndjson"}
    (here / "tokens.toml").write_text(f'billing = ["{hashed(BILLING)}"]')
    for options, status in (
        ([], 400),
        (["--public"], 201),
        (["--token-file", str(here / "tokens.toml")], 201),
    ):
        with served("--log", "shop_log", "--path", "/", *options) as url:
            found = httpx.post(f"{url}/append", content=line, headers=headers | bearer(BILLING))
            assert found.status_code == status
            answer = httpx.get(f"{url}/console/", headers=headers)
            assert (answer.status_code == 400) is (status == 400)


def test_table_of_a_long_name_is_served_with_its_console(here, served):
    """A name that is too long for the console's addresses is cut there, and keeps no feed away."""
    with served("--log", "x" * 120) as url:
        assert httpx.get(f"{url}/api/feeds/{'x' * 100}.json").status_code == 200
        assert httpx.get(f"{url}/events").status_code == 200


def test_log_keeps_its_partitions(here, served):
    """A log that has events beyond the partitions with which it is to be served is refused."""
    with (
        served("--log", "shop_log", "--partitions", "4") as url,
        client_of(f"{url}/events") as client,
    ):
        client.append(batch(20))
    with pytest.raises(ConfigurationError, match="partition 3: give --partitions as when"):
        served("--log", "shop_log", "--partitions", "3")


def test_table_that_is_no_log_is_left_alone(here, sqlite):
    """A table of other columns is refused as a log, and nothing is made beside it."""
    before = inspect(sqlite).get_table_names()
    refused = invoke("serve", "--log", "orders", "--database", os.environ["SHOP"])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "Table 'orders' is not a log, as it has no column position, " in refused.stderr
    assert inspect(sqlite).get_table_names() == before


def test_log_with_snapshots_counts_on(here, served):
    """A log of which a snapshot is left goes on from its version."""
    engine = create_engine(f"sqlite:///{here}/log.db")
    log = made(engine, partitions=1, snapshots=True)
    with engine.begin() as connection:
        log.append_to(connection, "ada", [NewEvent("paid", {})], expected_version=0)
        log.save_snapshot(connection, "ada", 1, "paid")
        connection.execute(log.table.delete())
    engine.dispose()
    options = ("--log", "orders", "--database", "sqlite:///log.db")
    with served(*options) as url, client_of(f"{url}/events") as client:
        [appended] = client.append([NewEvent("paid", {}, "ada", expected_version=1)])
        assert appended.version == 2


@pytest.mark.parametrize("partitions", [1, 4])
def test_log_of_the_file_is_sealed_and_trimmed(here, served, partitions):
    """The commands of upkeep open a log as the one that is served."""
    (here / "zeroeventhub.toml").write_text(
        "[feeds.all]\ndatabase = 'sqlite:///log.db'\ntable = 'orders'\nlog = true\n"
        "archive = 'archive'\n" + ("partitions = 4\n" if partitions > 1 else "")
    )
    engine = create_engine(f"sqlite:///{here}/log.db")
    log = made(engine, partitions=partitions)
    with engine.begin() as connection:
        log.feed(retention=Retention()).install(connection)
        log.append(connection, batch(10))
    tables = inspect(engine).get_table_names()
    for command in (["check"], ["seal"], ["trim", "--below", 6, "--yes"]):
        found = invoke(*command, "all")
        assert (found.exit_code, found.stderr) == (0, "")
    assert inspect(engine).get_table_names() == tables
    engine.dispose()
    with served() as url, client_of(f"{url}/all") as client:
        pages = [client.fetch(number, FIRST) for number in range(partitions)]
        assert sum(len(page.events) for page in pages) == 10


def test_tokens_append_as_the_file_says(here, served):
    """Who has a token appends to a log, unless the file names its readers and not this right."""
    feed = "log = true\ndatabase = 'sqlite:///logs.db'\npartitions = 4\n"
    (here / "zeroeventhub.toml").write_text(
        f"[serve]\ntoken_file = 'tokens.toml'\n[feeds.all]\ntable = 'one'\n{feed}"
        f"[feeds.some]\ntable = 'two'\n{feed}[feeds.some.readers]\nbilling = {{ append = true }}\n"
        "audit = {}\n"
    )
    with served() as url:
        for path, token in (("all", AUDIT), ("some", BILLING)):
            with client_of(f"{url}/{path}", {"headers": bearer(token)}) as client:
                assert len({one.partition for one in client.append(batch(10))}) > 1
        for path, token, error in (("some", AUDIT, Forbidden), ("all", None, Unauthorized)):
            with (
                client_of(f"{url}/{path}", {"headers": bearer(token)}) as client,
                pytest.raises(error),
            ):
                client.append(batch(1))
    for command in ("check", "horizon"):
        result = invoke(command, "some")
        assert (result.exit_code, result.stderr) == (0, ""), result.output


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "shop.invalid"])
def test_other_machines_need_a_token(here, sqlite_url, host):
    """A server listens to other machines only with tokens, or where it is told that it may."""
    with socket.create_server(("0.0.0.0", 0)) as taken:
        table = ("serve", "--database", sqlite_url, "--table", "orders", "--host", host)
        table += ("--port", taken.getsockname()[1])
        refused = invoke(*table)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert "by --token-file, or allow everybody by --public" in refused.stderr
        for allowed in (["--public"], ["--token-file", here / "tokens.toml"]):
            assert f"Cannot listen on {host}" in invoke(*table, *allowed).stderr


def test_archive_is_served_without_its_database(here, served):
    """With an archive alone, its feed is served, with what is known of it."""
    table = ["--database", "env:SHOP", "--table", "orders", "--data", "data", "--archive", "sealed"]
    with closing(sqlite3.connect(here / "test.db")) as connection:
        connection.executescript(invoke("ddl", *table[:4], "--retention").stdout)
    assert invoke("seal", *table).exit_code == 0
    (here / "test.db").unlink()
    with served("--archive", "sealed", "--path", "/orders", "--metrics", "/metrics") as url:
        assert get(f"{url}/orders").text.count("data") == 2
        assert "publisher_archive_lag_seconds" in httpx.get(f"{url}/metrics").text
