"""What a console shows of events, as documents of its API."""

import shlex
from dataclasses import replace
from datetime import datetime, timedelta

import httpx
from harness.console import append, console, console_of, fetch, ids_of
from harness.readers import Numbers
from sqlalchemy import MetaData

from zeroeventhub import Event, EventLog, NewEvent


def test_events_are_found(sqlite):
    """Events are found by partition, cursor, id, type and time, and pages follow each other."""
    append(sqlite, *({"part": n % 2, "kind": f"k{n % 3}"} for n in range(12)), step=1)
    with console(sqlite, feed={"partitions": 2}) as http:
        first = fetch(http, "feeds/orders/events", limit=4)
        assert ids_of(first) == [1, 3, 5, 7]
        second = fetch(http, "feeds/orders/events", cursor=first["next"])
        assert (ids_of(second), second["caught_up"]) == ([9, 11], True)
        by_id = fetch(http, "feeds/orders/events", id=4, limit=2)
        assert (by_id["partition"], ids_of(by_id)) == (1, [4, 6])
        typed = fetch(http, "feeds/orders/events", partition=1, type="k1")
        assert ids_of(typed) == [2, 8]
        since = datetime.fromisoformat(first["events"][2]["time"])
        timed = fetch(http, "feeds/orders/events", time=since.isoformat())
        assert ids_of(timed) == [5, 7, 9, 11]
        local = (since + timedelta(hours=2)).replace(tzinfo=None).isoformat()
        assert ids_of(fetch(http, "feeds/orders/events", time=local, zone=120)) == [5, 7, 9, 11]
        assert ids_of(fetch(http, "feeds/orders/events", time="1h")) == [1, 3, 5, 7, 9, 11]
        missing = http.get("api/feeds/orders/events.json", params={"id": "99"})
        assert missing.status_code == 400
        assert missing.json()["detail"] == "No event of this feed has this id."


def test_id_is_searched_for_in_a_feed_without_extensions():
    """A feed that neither looks up ids nor counts events is read until the id is found."""

    class Named(Numbers):
        def _page(self, cursor, limit, count):
            page = super()._page(cursor, limit, count)
            names = [f"e{one.data['n']}" for one in page.events]
            return replace(page, events=[Event.of({"specversion": "1.0", "id": n}) for n in names])

    with console_of(Named(20)) as http:
        found = fetch(http, "feeds/orders/events", id="e7", limit=2)
        assert [event["id"] for event in found["events"]] == ["e7", "e8"]
        assert found["searched"] == 7


def test_programs_get_the_same_events(sqlite):
    """What is shown as curl and as Python asks for the events on the page."""
    append(sqlite, *({"kind": "it's"} for _ in range(3)))
    with console(sqlite) as http:
        found = fetch(http, "feeds/orders/events", type="it's", limit=2)
        _, url = shlex.split(found["curl"])
        *lines, _ = httpx.get(url).text.splitlines()
        assert [f'{{"data":{event["raw"]}}}' for event in found["events"]] == lines
        printed = []
        exec(found["python"], {"print": printed.append})
        assert [event["id"] for event in printed] == ["1", "2"]


def test_deep_events_are_shown_as_they_are():
    """An event that is nested too deeply is not indented, which would multiply it."""
    texts = ['["[[[]",{"a":1}]', "[" * 33 + "]" * 33, "[" * 900 + "1," * 30_000 + "1" + "]" * 900]

    class Deep(Numbers):
        def _page(self, cursor, limit, count):
            page = super()._page(cursor, limit, count)
            chosen = [texts[one.data["n"]] for one in page.events]
            return replace(page, events=[Event(one.encode()) for one in chosen])

    with console_of(Deep(len(texts))) as http:
        shown = fetch(http, "feeds/orders/events")["events"]
    assert [one["pretty"] for one in shown[1:]] == texts[1:]
    assert shown[0]["pretty"] == '[\n  "[[[]",\n  {\n    "a": 1\n  }\n]'


def test_key_has_a_history(sqlite):
    """The history of a key is its events in the order of their versions, for programs as well."""
    metadata = MetaData()
    log = EventLog(metadata, "ledger")
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        for number in range(5):
            key = "ann" if number % 2 else "bob"
            event_of_key = NewEvent("moved", {"n": number})
            log.append_to(connection, key, [event_of_key], expected_version=number // 2)
    with console_of(log.feed(key_history=True), sqlite) as http:
        found = fetch(http, "feeds/orders/events", key="bob", limit=2)
        assert [event["version"] for event in found["events"]] == [1, 2]
        printed = []
        exec(found["python"], {"print": printed.append})
        assert [data["n"] for data in printed] == [0, 2]
        rest = fetch(http, "feeds/orders/events", key="bob", after_version=found["after_version"])
        assert [event["version"] for event in rest["events"]] == [3]
