"""How a console writes numbers, times, sizes and foreign text, and its files."""

import json
from contextlib import contextmanager
from datetime import UTC, datetime
from html import unescape

import httpx
import pytest
from harness.console import OWASP, Structure, append, visited
from harness.engines import connected
from harness.published import install
from harness.shop import orders
from harness.stores import call, load, new_store
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from zeroeventhub import (
    FIRST,
    AsyncClient,
    Client,
    Event,
    Principal,
    Progress,
    Retention,
    TableFeed,
    feed_routes,
)
from zeroeventhub.console import console_routes
from zeroeventhub.console.pages import asset, grouped, moment, size


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, "—"), (0, "0"), (1234567, "1,234,567"), (3.0, "3"), (1234.567, "1,234.57")],
)
def test_numbers_are_grouped(number, text):
    """Digits are grouped by thousands."""
    assert grouped(number) == text


def test_moment_is_exact_to_machines():
    """A moment has its exact instant in UTC beside what people read."""
    found = datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)
    exact = "2026-01-31T12:00:00.250Z"
    expected = f'<time datetime="{exact}" title="{exact}">2026-01-31 12:00:00 UTC</time>'
    assert moment(found) == moment(found.isoformat()) == expected
    assert moment(None) == "—"


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (2048, "2.0 KiB"), (5 << 40, "5.0 TiB")])
def test_size_has_a_unit(count, text):
    """Bytes are in the largest unit that fits."""
    assert size(count) == text


def test_asset_is_kept_by_caches():
    """A file's address changes with its content, so browsers ask for it once."""
    answer = asset("console.js")
    assert "immutable" in answer.headers["cache-control"]
    assert answer.media_type == "text/javascript"
    with pytest.raises(KeyError):
        asset("../routes.py")


FOREIGN = [" ".join(OWASP[start::4]) for start in range(4)]
"""The texts of OWASP in four, which are as short as names have to be."""


def elsewhere(texts):
    """Return clients of two feeds that have texts wherever the protocol lets them; one refuses."""
    every = " ".join(texts)

    async def discovery(_):
        known = ("event-types", "key-history", "splits")
        extensions = [*known, *(f"extension {one}" for one in texts)]
        token = f"token {every}"
        partitions = [{"id": "0"}]
        return JSONResponse({"token": token, "partitions": partitions, "extensions": extensions})

    async def events(request):
        names, end = ("id", "type", "subject", "time"), {"cursor": f"cursor {every}"}
        data = [{name: f"{name} {one}" for name in names} for one in texts]
        lines = [{"data": {"specversion": "1.0", **one}} for one in data]
        if request.query_params["cursor"] == end["cursor"]:
            lines = []
        return Response("".join(f"{json.dumps(line)}\n" for line in (*lines, end)))

    async def splits(_):
        return JSONResponse({"cursors": [f"begin {every}", f"end {every}"]})

    async def refusal(_):
        kind = "urn:zeroeventhub:problem/forbidden"
        return JSONResponse({"type": kind, "detail": f"detail {every}"}, 403)

    routes = [
        Route("/hostile", discovery),
        Route("/hostile/events", events),
        Route("/hostile/splits", splits),
        Route("/refusing", refusal),
    ]
    http = httpx.AsyncClient(transport=httpx.ASGITransport(Starlette(routes=routes)))
    return {one: AsyncClient(f"http://elsewhere/{one}", http) for one in ("hostile", "refusing")}


def consume(store, texts):
    """Let consumers of a store have texts wherever they can be, most of them the first one."""
    for text in texts:
        name = {"name": f"consumer {text}"}
        call(store, store.set, 0, f"cursor {' '.join(texts)}", **name)
        call(store, store.leases.claim, f"owner {text}", [0], seconds=30, share=True, **name)
    every, name = " ".join(texts), {"name": f"consumer {texts[0]}"}
    letter = Event.of({"member": f"data {every}"}, {f"header {every}": f"value {every}"})
    error, halt = ValueError(f"error {every}"), ValueError(f"halt {every}")
    call(store, store.dead_letters.add, 0, letter, key=f"key {every}", error=error, tries=1, **name)
    place = load(store, 0, **name)
    call(store, store.record_failure, 0, place, error=halt, tries=1, pause=None, **name)


@contextmanager
def foreign_console(engine, texts):
    """Serve a console that shows texts wherever they can come to it; yield an httpx client."""

    def by_name(request):
        return Principal(name=request.headers.get("name", ""))

    append(engine, *({"kind": f"kind {one}", "customer": one, "data": {one: one}} for one in texts))
    columns = {"data": "data", "type": "kind", "time": "placed", "key": "customer"}
    feed = TableFeed(
        orders, **columns, cloudevents=True, retention=Retention(), progress=Progress()
    )
    install(feed, engine)
    routes, store = feed_routes("/orders", feed, engine, authorize=by_name), new_store(engine)
    console = console_routes(
        "/",
        feeds={"orders": routes, **elsewhere(texts)},
        stores={"billing": store},
        authorize=by_name,
        allow_changes=True,
    )
    with visited([*routes, *console]) as http:
        consume(store, texts)
        for number, text in enumerate(texts, 1):
            with httpx.Client(headers={"name": f"principal {text}"}) as session:
                client = Client(str(http.base_url.join("/orders")), session)
                cursor = client.fetch(0, FIRST, limit=number).cursor
                client.register_progress(f"registered {text}", 0, cursor)
        yield http


def pages_of(http, texts):
    """Return the pages of a console in which texts may be, those of errors as well."""
    every = " ".join(texts)
    name, confirm = {"name": f"consumer {texts[0]}"}, "stores/billing/confirm"
    asked = [("", {}), *((f"feeds/{one}", {}) for one in ("orders", "hostile", "refusing"))]
    for feed in ("orders", "hostile"):
        asked += [(f"feeds/{feed}/events", {}), (f"feeds/{feed}/events", {"follow": 1})]
    for query in ({"id": "absent"}, {"cursor": f"cursor {every}"}):
        asked.append(("feeds/hostile/events", query))
    asked += [("stores/billing/dead-letter", {**name, "id": 1})]
    asked += [("stores/billing/consumer", {"name": f"consumer {one}"}) for one in texts]
    for action in ("retry", "discard", "reset"):
        asked.append((confirm, {**name, "action": action, f"field {every}": every}))
    for field in ("action", "partition", "time", "id", "name"):
        asked.append((confirm, {**name, "action": "seek", field: every}))
    answers = [http.get(path, params=query) for path, query in asked]
    for text in texts:
        query = {"name": f"consumer {text}", "action": "reset"}
        answers.append(http.get(confirm, params=query))
        fields, person = dict(Structure(answers[-1]).fields), {"name": f"principal {text}"}
        done = http.post("stores/billing/change", data=fields, headers=person)
        assert done.status_code == 303, done.text
    return [*answers, http.get("stores/billing/audit")]


def test_foreign_text_stays_text(tmp_path):
    """No field of any page lets a text become an element, an attribute or the address of a link."""
    harmless = [f"harmless {number}" for number, _ in enumerate(FOREIGN)]
    shown = []
    for name, texts in {"harmless": harmless, "foreign": FOREIGN}.items():
        with (
            connected(f"sqlite:///{tmp_path / name}.db") as engine,
            foreign_console(engine, texts) as http,
        ):
            shown.append(pages_of(http, texts))
    for plain, foreign in zip(*shown, strict=True):
        assert plain.status_code == foreign.status_code
        structure = Structure(foreign)
        assert structure.elements == Structure(plain).elements, foreign.url
        assert not any(":" in link.partition("/")[0] for link in structure.links)
        marked = (text for text in OWASP if {*text} & {*"<>\"'"})
        assert not [text for text in marked if text in foreign.text], foreign.url
    found = unescape("".join(page.text for page in shown[1]))
    once = ("token", "cursor", "begin", "detail", "header", "value", "data")
    every = [f"{field} {' '.join(FOREIGN)}" for field in (*once, "key", "error", "halt")]
    fields = ("kind", "extension", "id", "type", "subject", "consumer", "owner")
    each = [f"{field} {one}" for field in (*fields, "principal", "registered") for one in FOREIGN]
    for text in (*every, *each):
        assert text in found or json.dumps(text)[1:-1] in found, text
