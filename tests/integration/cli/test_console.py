"""`zeroeventhub console`: feeds and consumers of elsewhere, in the browser."""

import httpx
import pytest
from harness.command_line import invoke, started
from harness.console import append, shop_routes
from harness.stores import call, new_store
from harness.web import serving
from starlette.applications import Starlette

from zeroeventhub import FIRST, bearer_tokens
from zeroeventhub.cli.console import names_of

TOKEN = "operator-0123456789"


@pytest.mark.slow
def test_console_shows_feeds_and_stores(sqlite, sqlite_url):
    """Feeds are read with the given credentials, beside the consumers of a database."""
    append(sqlite, *({} for _ in range(3)))
    store = new_store(sqlite)
    call(store, store.set, 0, FIRST)
    hook = bearer_tokens({TOKEN: "operator"})
    with serving(Starlette(routes=shop_routes(sqlite, authorize=hook))) as url:
        options = ("--feed", f"{url}/orders", "-H", f"Authorization: Bearer {TOKEN}", "--port", 0)
        with started("console", *options, "--store", sqlite_url) as process:
            address = process.stdout.readline().removeprefix("Open: ").strip()
            told = httpx.get(f"{address}api/overview.json").json()
            assert [one["partitions"] for one in told["feeds"]] == [1]
            assert [one["consumer"] for one in told["consumers"]] == ["billing"]
            assert told["stores"] == ["test"]
            lag = httpx.get(f"{address}api/stores/test/lag.json?name=billing").json()
            assert lag["events"] == 3
            rebound = httpx.get(address, headers={"Host": "attacker.example"})
            assert rebound.status_code == 400


@pytest.mark.parametrize(
    ("places", "names"),
    [
        (["https://shop.example/orders", "https://bank.example/orders/"], ["orders", "orders-2"]),
        (["/var/lib/billing.db", "billing", ":memory:"], ["billing", "billing-2", "memory"]),
        (["http://127.0.0.1:8080", "/é"], ["8080", "default"]),
    ],
)
def test_places_have_names(places, names):
    """What is shown has the last word of its place as its name, and no name twice."""
    assert names_of(places) == names


def test_nothing_to_show_is_refused():
    """A console of nothing says what to give."""
    result = invoke("console")
    assert result.exit_code == 2
    assert "--feed with a URL, or --store with a database" in result.stderr


def test_database_without_consumers_is_refused(sqlite, sqlite_url):
    """A database without the tables of consumers is refused at the start."""
    append(sqlite, {})
    result = invoke("console", "--store", sqlite_url)
    assert result.exit_code == 2
    assert "has no table zeroeventhub_cursors" in result.stderr
