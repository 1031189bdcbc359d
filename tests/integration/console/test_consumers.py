"""What a console shows of consumers, and to whom."""

import asyncio
from contextlib import contextmanager

import httpx
import pytest
from harness.console import (
    OWASP,
    Structure,
    append,
    console,
    fetch,
    shop_routes,
    store_console,
    visited,
)
from harness.engines import async_url, cancelling, connected
from harness.readers import engine_of, raising
from harness.shop import orders
from harness.stores import call, claim, load, new_store
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from zeroeventhub import (
    FIRST,
    LAST,
    CursorStore,
    Event,
    Principal,
    TableFeed,
    everybody,
    feed_routes,
)
from zeroeventhub.console import console_routes
from zeroeventhub.errors import ConfigurationError, Unavailable

CONSUMER = "stores/billing/consumer"


@pytest.fixture
def store(tmp_path):
    """A store of its own."""
    with connected(f"sqlite:///{tmp_path / 'billing.db'}") as engine:
        yield new_store(engine)


def set_aside(store, data, *, partition=0, key="ann", error="It broke.", name="billing"):
    """Add a dead letter, or one that is held back if there is no error."""
    found = None
    if error:
        try:
            [][error]
        except TypeError as raised:
            found = ValueError(error).with_traceback(raised.__traceback__)
    letter = (partition, Event.of(data, {"trace": "t1"}))
    call(store, store.dead_letters.add, *letter, key=key, error=found, tries=3, name=name)


def halt(store, error, partition=0, name="billing", pause=None):
    """Let a partition halt where its cursor is, or be retried after a pause."""
    failure = {"error": ValueError(error), "tries": 3, "pause": pause}
    place = load(store, partition, name=name)
    call(store, store.record_failure, partition, place, **failure, name=name)


def stand(store, cursor, partition=0, name="billing"):
    """Set a consumer's cursor."""
    call(store, store.set, partition, cursor, name=name)


@contextmanager
def shown(engine, store, **options):
    """Serve a console of a shop and a store, to everybody unless told otherwise."""
    options = {"authorize": everybody, "stores": {"billing": store}, **options}
    with console(engine, **options) as http:
        yield http


def cursor_after(http, events, partition=0):
    """Return the cursor after some events of a partition."""
    return fetch(http, "feeds/orders/events", partition=partition, limit=events)["next"]


def test_consumer_is_described(sqlite, store):
    """A consumer has its lag, its cursor, its lease and its dead letters in each partition."""
    append(sqlite, *({"part": n % 2} for n in range(20)), ago=300)
    with shown(sqlite, store, feed={"partitions": 2}) as http:
        stand(store, cursor_after(http, 4))
        stand(store, FIRST, partition=1)
        claim(store, "worker-7", [0])
        set_aside(store, {"n": 1})
        set_aside(store, {"n": 2}, error="")
        (line,) = fetch(http, "overview")["consumers"]
        assert [line[name] for name in ("consumer", "partitions", "processes", "dead_letters")] == [
            *("billing", 2, 1, 2)
        ]
        found = fetch(http, CONSUMER, name="billing")
        one, other = found["partitions"]
        assert (found["feed"], found["lag"]["events"]) == ("orders", 16)
        assert found["lag"]["seconds"] == pytest.approx(300, abs=30)
        assert (one["owner"], one["lag"]["events"], other["owner"]) == ("worker-7", 6, None)
        assert one["until"] > one["moved"]
        assert [letter["state"] for letter in found["dead_letters"]] == ["failed", "held"]
        letter = fetch(http, "stores/billing/dead-letter", name="billing", id=1)
        assert letter["event"]["raw"] == '{"n":1}'
        assert letter["error"] == "ValueError: It broke."
        assert "in set_aside" in letter["traceback"]
        assert letter["headers"] == {"trace": "t1"}
        lag = fetch(http, "stores/billing/lag", name="billing")
        assert lag == found["lag"] | {"seconds": lag["seconds"]}


def test_halted_partition_is_shown_with_its_error(sqlite, store):
    """Where a partition halted, its page has the error, when it was, and the event behind it."""
    append(sqlite, *({"part": n % 2} for n in range(4)))
    with shown(sqlite, store, feed={"partitions": 2}) as http:
        for number in (0, 1):
            stand(store, FIRST, partition=number)
        halt(store, "no price of <b>17</b>")
        assert fetch(http, "overview")["consumers"][0]["halted"] == 1
        one, other = fetch(http, CONSUMER, name="billing")["partitions"]
        assert (one["error"], one["tries"]) == ("ValueError: no price of <b>17</b>", 3)
        assert one["halted_at"] >= one["moved"]
        assert (other["error"], other["halted_at"]) == (None, None)
        page = http.get(CONSUMER, params={"name": "billing"}).text
        assert "Partition 0 has halted" in page
        assert "no price of &lt;b&gt;17" in page
        assert "Partition 1 has halted" not in page


def test_retries_are_shown_while_they_go_on(sqlite, store):
    """The page has the last error, how many tries failed since when, and when the next is due."""
    append(sqlite, {})
    with shown(sqlite, store) as http:
        stand(store, FIRST)
        halt(store, "no price of <b>17</b>", pause=30.0)
        assert fetch(http, "overview")["consumers"][0]["halted"] == 0
        (found,) = fetch(http, CONSUMER, name="billing")["partitions"]
        assert (found["error"], found["tries"]) == ("ValueError: no price of <b>17</b>", 3)
        assert found["halted_at"] is None
        assert found["moved"] <= found["retried_since"] < found["retry_at"]
        page = http.get(CONSUMER, params={"name": "billing"}).text
        for words in ("Partition 0 is retried", "tries that failed: 3", "no price of &lt;b&gt;17"):
            assert words in page
        assert "No process reads it now" in page
        claim(store, "billing", [0])
        assert "Next try: <time" in http.get(CONSUMER, params={"name": "billing"}).text


def test_rate_is_that_between_two_looks(sqlite, store, monkeypatch):
    """The rate of a consumer is what it committed since somebody looked."""
    monkeypatch.setattr("zeroeventhub.console.consumers._WINDOW", (1e-9, 300.0))
    append(sqlite, *({} for _ in range(20)))
    with shown(sqlite, store) as http:
        stand(store, cursor_after(http, 4))
        assert fetch(http, CONSUMER, name="billing")["rate"] in {None, 0}
        stand(store, cursor_after(http, 14))
        assert fetch(http, CONSUMER, name="billing")["rate"] > 0
        assert fetch(http, CONSUMER, name="billing")["rate"] == 0


def test_consumer_is_shown_beside_its_feed(sqlite, store):
    """Of several feeds, the one that knows a consumer's cursor counts its lag."""
    append(sqlite, *({"data": {"n": n}} for n in range(20)))
    with connected("sqlite:///" + str(sqlite.url.database) + ".other") as other:
        append(other, *({"data": {"other": n}} for n in range(20)))
        one = shop_routes(sqlite)
        two = feed_routes("/two", TableFeed(orders, data="data"), other, name="two")
        routes = console_routes(
            "/", feeds={"two": two, "orders": one}, stores={"billing": store}, authorize=everybody
        )
        with visited(routes) as http:
            stand(store, cursor_after(http, 4))
            found = fetch(http, CONSUMER, name="billing")
            assert (found["feed"], found["lag"]["events"]) == ("orders", 16)
            stand(store, "2-4-0-0123456789")
            found = fetch(http, CONSUMER, name="billing")
            assert (found["feed"], found["lag"]["events"]) == (None, None)
            assert "none of this console knows" in http.get(f"{CONSUMER}?name=billing").text


@pytest.mark.parametrize(
    "error", [Unavailable("The directory is away."), KeyError("no reader"), HTTPException(403)]
)
def test_consumer_is_shown_though_a_feed_does_not_answer(sqlite, store, error):
    """What a store knows of a consumer is shown whatever feeds answer, and its lag if one does."""
    append(sqlite, *({} for _ in range(20)))
    good = shop_routes(sqlite)
    bad = shop_routes(sqlite, path="/bad", authorize=raising(error))
    for feeds, lag in (({"bad": bad, "orders": good}, 16), ({"bad": bad}, None)):
        options = {"stores": {"billing": store}, "authorize": everybody}
        routes = console_routes("/", feeds=feeds, **options)
        with visited(routes) as http:
            if lag:
                stand(store, cursor_after(http, 4))
            found = fetch(http, CONSUMER, name="billing")
            assert (len(found["partitions"]), found["lag"]["events"]) == (1, lag)
            assert http.get(f"{CONSUMER}?name=billing").status_code == 200
            assert fetch(http, "stores/billing/lag", name="billing")["events"] == lag
            lines = fetch(http, "overview")["feeds"]
            assert ["error" in line for line in lines] == [True, False][: len(feeds)]


@pytest.mark.parametrize(
    ("principal", "numbers", "letters"),
    [
        (Principal(name="all"), [0, 1], [1, 2]),
        (Principal(name="part", partitions={1}), [1], [2]),
        (Principal(name="typed", types={"placed"}), [0, 1], []),
        (Principal(name="none", partitions=set()), None, []),
    ],
)
def test_principal_sees_its_part(sqlite, store, principal, numbers, letters):
    """Cursors and dead letters of hidden partitions are hidden, and all events' of types."""
    append(sqlite, *({"part": n % 2} for n in range(4)))
    for number in (0, 1):
        stand(store, FIRST, partition=number)
        set_aside(store, {"n": number}, partition=number)
        halt(store, "It broke.", partition=number)
    hook = {"authorize": lambda _: principal}
    with shown(sqlite, store, **hook, feed={"partitions": 2, **hook}) as http:
        answer = http.get(f"api/{CONSUMER}.json", params={"name": "billing"})
        assert answer.status_code == (404 if numbers is None else 200)
        if numbers is not None:
            assert [one["id"] for one in answer.json()["partitions"]] == numbers
            assert [one["id"] for one in answer.json()["dead_letters"]] == letters
            errors = [one["error"] for one in answer.json()["partitions"]]
            assert errors == (
                [None] * 2 if principal.types else ["ValueError: It broke."] * len(numbers)
            )
            page = http.get(CONSUMER, params={"name": "billing"}).text
            assert ("It broke." in page) == (principal.types is None)
        for number in (1, 2):
            query = {"name": "billing", "id": number}
            status = http.get("api/stores/billing/dead-letter.json", params=query).status_code
            assert status == (200 if number in letters else 404)
        lines = fetch(http, "overview")["consumers"]
        assert [line["partitions"] for line in lines] == ([len(numbers)] if numbers else [])


def test_texts_of_consumers_stay_texts(sqlite, store):
    """Names, keys, errors and events of dead letters add no element to a page."""
    append(sqlite, {})
    with shown(sqlite, store) as http:
        structures = []
        for text in ("harmless", "\n".join(OWASP)):
            name = " ".join(text.split())[:200].rstrip()
            stand(store, FIRST, name=name)
            claim(store, name, [0])
            set_aside(store, {"x": text}, key=text, error=text, name=name)
            halt(store, text, name=name)
            number = len(structures) + 1
            page = http.get(CONSUMER, params={"name": name})
            query = {"name": name, "id": number}
            letter = http.get("stores/billing/dead-letter", params=query)
            assert {page.status_code, letter.status_code} == {200}
            structures.append((Structure(page).elements, Structure(letter).elements))
            overview = Structure(http.get("")).elements
        assert structures[0] == structures[1]
        assert not {tag for tag, _ in overview} & {"img", "svg", "iframe", "math", "x"}


def test_stores_need_a_hook(store):
    """A console with stores and without `authorize` is refused."""
    with pytest.raises(ConfigurationError, match="who may see them by authorize"):
        console_routes("/", feeds={}, stores={"billing": store})


def test_database_without_tables_is_told(sqlite, tmp_path):
    """A store without tables is an error that says so, on the page and in the API."""
    append(sqlite, {})
    with (
        connected(f"sqlite:///{tmp_path / 'empty.db'}") as empty,
        shown(sqlite, CursorStore(empty)) as http,
    ):
        answer = http.get("")
        assert answer.status_code == 400
        assert "has no table zeroeventhub_cursors" in answer.text


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_store_that_is_not_there_is_asked_later(driver):
    """A store that an async engine cannot reach is one to come back to, whatever the driver."""
    away = create_async_engine(f"postgresql+{driver}://nobody@127.0.0.1:1/none")
    with store_console(CursorStore(away)) as http:
        assert http.get("api/overview.json").status_code == 503


def test_store_may_be_async(any_engine, store, tmp_path):
    """A store with an async engine is shown like one with a sync one, and is left as it was."""
    append(any_engine, {})
    stand(store, FIRST)
    with store_console(CursorStore(engine_of("async", store.engine))) as http:
        assert [one["consumer"] for one in fetch(http, "overview")["consumers"]] == ["billing"]
        assert fetch(http, CONSUMER, name="billing")["feed"] is None
    stand(store, FIRST)


@pytest.mark.parametrize("name", ["", "\0", "other", "x" * 1000])
def test_name_of_no_consumer_is_not_found(postgresql, name):
    """An address with a name that the store has not, or that no consumer can have, is not found."""
    with store_console(new_store(postgresql)) as http:
        for view in ("consumer", "lag", "dead-letter"):
            answer = http.get(f"api/stores/billing/{view}.json", params={"name": name, "id": 5})
            assert answer.status_code == 404


def test_look_holds_no_connection(sqlite, store):
    """A look at a store is read-only, has a deadline, and gives its connection back."""
    append(sqlite, {})
    stand(store, FIRST)
    one = create_engine(store.engine.url, pool_size=1, max_overflow=0, pool_timeout=1)
    with shown(sqlite, CursorStore(one)) as http:
        for _ in range(3):
            fetch(http, CONSUMER, name="billing")
        assert one.pool.checkedout() == 0


@pytest.mark.anyio
async def test_look_that_is_cancelled_keeps_no_writer_waiting(store):
    """SQLite's lock goes with a look that is cancelled, and not when garbage is collected."""
    stand(store, FIRST)
    engine = create_async_engine(async_url(store.engine.url))
    stores = {"billing": CursorStore(engine)}
    app = Starlette(routes=console_routes("/", feeds={}, stores=stores, authorize=everybody))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://console") as http:
        with cancelling(engine, "zeroeventhub_cursors"):
            done, _ = await asyncio.wait([asyncio.create_task(http.get("/"))])
            assert done.pop().cancelled()
            with connected(store.engine.url, timeout=0.5) as other:
                stand(CursorStore(other), LAST)
    await engine.dispose()
