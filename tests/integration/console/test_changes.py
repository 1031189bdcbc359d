"""Changes to consumers: what a console says before, does, and writes down."""

import json
import logging
import re
from contextlib import contextmanager
from html import unescape
from uuid import uuid4

import pytest
import sqlalchemy as sa
from harness.console import append, console
from harness.engines import connected
from harness.statements import add, execute
from harness.stores import advance, call, cursor, load, new_store

from zeroeventhub import FIRST, Client, CursorStore, Event, Principal, everybody
from zeroeventhub.errors import Fenced, Forbidden

CONFIRM = "stores/billing/confirm"
ANN = Principal(name="ann")


@contextmanager
def console_of(engine, store, **options):
    """Serve a console that may change the consumers of a store."""
    options = {"authorize": lambda _: ANN, "allow_changes": True, **options}
    with console(engine, stores={"billing": store}, **options) as http:
        yield http


@pytest.fixture
def store(any_engine):
    """A store beside the shop, in the same database."""
    return new_store(any_engine)


@pytest.fixture
def shop(any_engine):
    """A shop with 20 orders, one a second."""
    append(any_engine, *({"data": {"n": n}} for n in range(20)), ago=3600, step=1)
    return any_engine


def place_of(http, events):
    """Return the cursor after some events, and the time of the next one."""
    client = Client(str(http.base_url.join("/orders")))
    page = client.fetch(0, FIRST, limit=events + 1)
    return client.fetch(0, FIRST, limit=events).cursor, page.events[-1].data["time"]


def stand(store, place):
    """Set the cursor of the consumer in partition 0."""
    call(store, store.set, 0, place)


def question(http, **query):
    """Return what a person is asked before a change, and the fields of the form."""
    page = http.get(CONFIRM, params={"name": "billing", **query})
    assert page.status_code == 200, page.text
    text = re.search(r'<p id="consequence">(.*)</p>', page.text)[1]
    fields = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', page.text)
    form = {}
    for name, value in fields:
        form.setdefault(name, []).append(unescape(value))
    return unescape(text), form


def confirm(http, **query):
    """Ask, agree, and return what was said before."""
    text, form = question(http, **query)
    answer = http.post("stores/billing/change", data=form)
    assert answer.status_code == 303, answer.text
    assert "Done." in http.get(f"stores/billing/{answer.headers['location']}").text
    return text


def set_aside(store, *keys, held=()):
    """Add dead letters of keys, and some that are held back after them."""
    for number, key in enumerate((*keys, *held)):
        error = None if number >= len(keys) else ValueError("It broke.")
        call(
            store, store.dead_letters.add, 0, Event.of({"n": number}), key=key, error=error, tries=1
        )


def states(store):
    """Return the states of the dead letters by their numbers."""
    return {one.id: one.state for one in call(store, store.dead_letters.letters)}


def test_cursor_is_moved_to_a_time(shop, store):
    """Before a cursor is moved to a time, a person reads how many events are read again."""
    with console_of(shop, store) as http:
        after_5, time = place_of(http, 5)
        stand(store, place_of(http, 15)[0])
        text = confirm(http, action="seek", time=time)
        assert "About 10 events are read again: effects that are there" in text
        assert cursor(store, 0) == after_5
        text = confirm(http, action="seek", time=place_of(http, 12)[1], partition=0)
        assert "About 7 events are left out, and never take effect." in text


def test_consumer_with_a_cursor_of_a_dropped_partition_is_moved(shop, store):
    """A partition that the feed no longer lists keeps a consumer from no other place."""
    with console_of(shop, store) as http:
        after_5, time = place_of(http, 5)
        stand(store, place_of(http, 15)[0])
        load(store, 7, start="gone")
        assert "About 10 events are read again" in confirm(http, action="seek", time=time)
        assert (cursor(store, 0), cursor(store, 7)) == (after_5, "gone")
        assert "It is unknown how many events are read again" in confirm(http, action="reset")
        assert (cursor(store, 0), cursor(store, 7)) == (FIRST, FIRST)


def test_consumer_starts_again(shop, store):
    """A reset says what is deleted, and fences the process that reads the partition."""
    with console_of(shop, store) as http:
        stand(store, place_of(http, 8)[0])
        set_aside(store, "a", "b")
        running = load(store, 0)
        text = confirm(http, action="reset")
        assert "Its inbox and its dead letters there are deleted: 2." in text
        assert "About 8 events are read again" in text
        assert (cursor(store, 0), states(store)) == (FIRST, {})
        with pytest.raises(Fenced):
            call(store, store.advance, 0, running, "2-9-0000-0000000000")


def test_one_event_is_skipped(shop, store):
    """Skipping leaves out the next event alone."""
    with console_of(shop, store) as http:
        stand(store, place_of(http, 3)[0])
        text = confirm(http, action="skip", partition=0)
        assert "leaves out the next event of partition 0. About 1 events are left out" in text
        assert cursor(store, 0) == place_of(http, 4)[0]


def test_event_of_a_page_that_lanes_have_begun_is_not_skipped(shop, store):
    """Skipping would apply again what lanes have applied; a move says that it does."""
    with console_of(shop, store) as http:
        stand(store, place_of(http, 3)[0])
        advance(store, load(store, 0), 1, 0, 2)
        query = {"name": "billing", "partition": 0}
        answer = http.get(CONFIRM, params={**query, "action": "skip"})
        assert answer.status_code == 400
        assert "Lanes have applied a part of the next page" in answer.text
        text, _ = question(http, action="seek", time=place_of(http, 4)[1])
        assert "Lanes have applied a part of a page: what follows a new cursor" in text


def test_event_that_was_applied_meanwhile_is_not_skipped(shop, store):
    """Skipping does nothing if the consumer has gone on since it was confirmed."""
    with console_of(shop, store) as http:
        stand(store, place_of(http, 3)[0])
        _, form = question(http, action="skip", partition=0)
        stand(store, place_of(http, 4)[0])
        answer = http.post("stores/billing/change", data=form)
        assert answer.status_code == 409
        assert "Something has moved since you were asked" in answer.text
        assert cursor(store, 0) == place_of(http, 4)[0]


def test_link_brings_no_confirmation(shop, store):
    """What a link has besides its question is no field of the form that confirms a change."""
    with console_of(shop, store) as http:
        stand(store, place_of(http, 3)[0])
        _, own = question(http, action="skip", partition=0)
        stand(store, place_of(http, 4)[0])
        others = {"csrf": "x", "ids": "7", "confirmed": own["confirmed"], "more": "x"}
        _, form = question(http, action="skip", partition=0, **others)
        assert {*form} == {*own}
        assert [len(values) for values in form.values()] == [1] * len(form)
        assert form["confirmed"] != own["confirmed"]


def test_dead_letters_are_retried_and_discarded(shop, store):
    """Those that were chosen are retried or discarded, with their number said before."""
    with console_of(shop, store) as http:
        stand(store, FIRST)
        set_aside(store, "a", "b", "c", held=["a"])
        one, two, three, held = states(store)
        text = confirm(http, action="retry", id=[one, two])
        assert "applied again, as soon as it runs: 2." in text
        assert states(store) == {one: "retry", two: "retry", three: "failed", held: "held"}
        assert "that never take effect: 1." in confirm(http, action="discard", id=three)
        text = confirm(http, action="discard")
        assert "that never take effect: 3." in text
        assert states(store) == {}
        assert http.get(CONFIRM, params={"name": "billing", "action": "retry"}).status_code == 400


def test_change_of_many_dead_letters_says_how_many_stay(shop, store):
    """One change retries or discards a thousand dead letters, the oldest, and says what is left."""
    with console_of(shop, store) as http:
        stand(store, FIRST)
        set_aside(store, "a")
        letters = store.tables.dead_letters
        with shop.connect() as connection:
            (letter,) = connection.execute(sa.select(letters)).mappings()
        add(shop, letters, [{**letter, "id": number} for number in range(2, 1_004)])
        assert "runs: 1,000." in (text := confirm(http, action="retry"))
        assert text.endswith(" At once only the oldest 1,000 are changed; 3 more stay.")
        assert confirm(http, action="discard").endswith("; 3 more stay.")
        assert confirm(http, action="discard").endswith(" never take effect: 3.")
        assert states(store) == {}


def test_change_is_in_the_audit_log(shop, store, caplog):
    """Who did what, and what was said before, is written down with the change or not at all."""
    caplog.set_level(logging.INFO, "zeroeventhub.console")
    with console_of(shop, store) as http:
        assert http.get("api/stores/billing/audit.json").json()["entries"] == []
        before = place_of(http, 3)[0]
        stand(store, before)
        text = confirm(http, action="reset")
        set_aside(store, "a")
        confirm(http, action="discard")
        discarded, reset = http.get("api/stores/billing/audit.json").json()["entries"]
        assert [reset[name] for name in ("principal", "consumer", "action")] == [
            *("ann", "billing", "reset")
        ]
        assert reset["details"]["text"] == text
        (move,) = reset["details"]["moves"]
        assert (move["before"], move["cursor"], move["again"]) == (before, FIRST, 3)
        assert discarded["details"]["ids"] == [1]
        assert "ann" in http.get("stores/billing/audit").text
        record = next(one for one in caplog.records if "A consumer was changed" in one.message)
        assert (record.principal, record.consumer, record.action) == ("ann", "billing", "reset")
        assert before not in caplog.text


def test_audit_log_takes_all_names(mariadb):
    """A consumer is changed whatever the character set is that the database has by default."""
    append(mariadb, {})
    store, name = new_store(mariadb), "Ж 😀"
    load(store, 0, start=FIRST, name=name)
    with console_of(mariadb, store) as http:
        confirm(http, name=name, action="reset")
        (entry,) = http.get("api/stores/billing/audit.json").json()["entries"]
    assert entry["consumer"] == name


def test_user_that_may_not_create_tables_changes_consumers(postgresql):
    """Once the table of the audit log is there, a change needs no right to create tables."""
    append(postgresql, {})
    with console_of(postgresql, (store := new_store(postgresql))) as http:
        stand(store, FIRST)
        confirm(http, action="reset")
    role = f"role_{uuid4().hex}"
    execute(
        postgresql,
        f"CREATE ROLE {role} LOGIN PASSWORD 'secret'",
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}",
        f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}",
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
    )
    try:
        url = postgresql.url.set(username=role, password="secret")
        with connected(url) as engine, console_of(postgresql, CursorStore(engine)) as http:
            confirm(http, action="reset")
    finally:
        execute(postgresql, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@pytest.mark.parametrize(
    ("principal", "options"),
    [
        (ANN, {"allow_changes": False}),
        (Principal(name="part", partitions={0}), {}),
        (Principal(name="typed", types={"placed"}), {}),
    ],
)
def test_change_needs_the_right(shop, store, principal, options):
    """Changes are off until they are switched on, and for those who see everything."""
    stand(store, FIRST)
    set_aside(store, "a")
    with console_of(shop, store, authorize=lambda _: principal, **options) as http:
        for path in ("consumer?name=billing", "dead-letter?name=billing&id=1"):
            assert "Discard" not in http.get(f"stores/billing/{path}").text
        query = {"name": "billing", "action": "discard"}
        assert http.get(CONFIRM, params=query).status_code == 403
        form = {**query, "ids": ["1"], "csrf": http.cookies["zeroeventhub_csrf"]}
        assert http.post("stores/billing/change", data=form).status_code == 403
        assert states(store) == {1: "failed"}


def test_hook_is_asked_at_each_change(shop, store):
    """A hook that allows looking and refuses a POST refuses the change."""

    def looks_only(request):
        if request.method == "POST":
            raise Forbidden("You may look.")
        return ANN

    stand(store, FIRST)
    set_aside(store, "a")
    with console_of(shop, store, authorize=looks_only) as http:
        _, form = question(http, action="discard")
        answer = http.post("stores/billing/change", data=form)
        assert (answer.status_code, "You may look." in answer.text) == (403, True)
        assert states(store) == {1: "failed"}


@pytest.mark.parametrize("csrf", ["", "x" * 43])
def test_change_needs_the_token_of_the_page(shop, store, csrf):
    """A form without the token of the page changes nothing."""
    stand(store, FIRST)
    set_aside(store, "a")
    with console_of(shop, store, authorize=everybody) as http:
        _, form = question(http, action="discard")
        answer = http.post("stores/billing/change", data={**form, "csrf": csrf})
        assert answer.status_code == 403
        assert states(store) == {1: "failed"}
        assert http.get(f"stores/billing/change?{json.dumps(form)}").status_code == 404


@pytest.mark.test_all
@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
def test_locked_store_is_not_waited_for(request, database, monkeypatch):
    """A change gives up a row that another transaction holds, and says so."""
    engine = request.getfixturevalue(database)
    append(engine, {})
    store = new_store(engine)
    monkeypatch.setattr("zeroeventhub.console.consumers.STATEMENT_SECONDS", 1)
    stand(store, FIRST)
    with console_of(engine, store) as http:
        confirm(http, action="reset")
        _, form = question(http, action="reset")
        with engine.begin() as connection:
            store.set(connection, "billing", 0, FIRST)
            answer = http.post("stores/billing/change", data=form)
        assert answer.status_code == 503
        assert "did not answer, or asked to try again" in answer.text
