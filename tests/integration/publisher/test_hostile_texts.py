"""Names and values that are SQL, wherever a feed or a consumer has them: they are texts.

On MariaDB it depends on the session whether a backslash escapes, and what double quotes are.
"""

import httpx
import pytest
import sqlalchemy as sa
from harness.published import install
from harness.readers import cursor_of, kind, mounted
from harness.stores import call, load, new_store
from harness.tables import event_table

from zeroeventhub import TableFeed
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import Retention

MODES = ["", "NO_BACKSLASH_ESCAPES", "ANSI_QUOTES", "ANSI_QUOTES,NO_BACKSLASH_ESCAPES"]
# Databases, and how the sessions of MariaDB read texts.
PLACES = [("sqlite", ""), ("postgresql", ""), *(("mariadb", mode) for mode in MODES)]
ODD = "it's \"odd\" `back` \\' per%cent%(s)s co:lon"
VALUES = [
    "' OR 1=1 -- ",
    "\\' OR 1=1 # ",
    "\\",
    "\\\\'",
    '" OR ""="',
    "%s%%(a)s:b?",
    "` OR 1 `",
    "\\0%_",
]


@pytest.fixture
def odd(place):
    """A name of anything but what quotes it: SQLAlchemy does not find that in MariaDB's tables."""
    return ODD.replace('"' if "ANSI" in place[1] else "`", "")


@pytest.fixture
def engine(request, place):
    """An engine of an empty database, whose sessions read texts in one way or another."""
    database, mode = place
    options = {"init_command": f"SET sql_mode = CONCAT(@@sql_mode, ',{mode}')"} if mode else {}
    engine = sa.create_engine(request.getfixturevalue(f"{database}_url"), connect_args=options)
    yield engine
    engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "ordering"),
    [
        *((place, None) for place in PLACES),
        *((place, "sequenced") for place in (*PLACES[:2], PLACES[-1])),
    ],
    ids=lambda one: "-".join(filter(None, one)) if isinstance(one, tuple) else one,
)
def test_hostile_texts_of_a_feed_are_texts(engine, odd, ordering):
    """Types, ids, keys, cursors and names of consumers find what they name, and nothing else."""
    text = sa.String(60)
    columns = {f"{name} {odd}": text for name in ("kind", "name", "key")}
    columns |= {f"n {odd}": sa.Integer, f"data {odd}": sa.JSON}
    type_, id_, key, version, data = columns
    table = event_table(odd, sa.UniqueConstraint(key, version), position=f"id {odd}", **columns)
    table.metadata.create_all(engine)
    named = {"type": type_, "id": id_, "key": key, "version": version, "data": data}
    kept = {"retention": Retention(), "progress": Progress(), "key_history": True}
    feed = TableFeed(table, **named, **kept, cloudevents=f"/{odd}", ordering=ordering)
    install(feed, engine)
    with engine.begin() as connection:
        connection.execute(
            table.insert(), [{type_: v, id_: v, key: v, version: 1, data: [v]} for v in VALUES]
        )
    with mounted(feed, engine, http_feed=True) as url, httpx.Client(timeout=20) as http:

        def ask(route="/events", method="GET", **parameters):
            parameters = {"token": "1", "partition": 0, "cursor": "_first"} | parameters
            return http.request(method, f"{url}{route}", params=parameters)

        end = cursor_of(ask())
        for value in VALUES:
            found = ask(**{"event-types": value})
            assert found.text.count('"data":{') == 1, (value, found.text)
            skipped = ask(**{"skip-event-types": value})
            assert skipped.text.count('"data":{') == len(VALUES) - 1, value
            behind = ask("/http-feed", lastEventId=value).json()
            assert len(behind) == len(VALUES) - 1 - VALUES.index(value)
            (event,) = ask("/key-history", key=value).json()["events"]
            assert event["data"]["data"] == [value]
            assert (event["data"]["id"], event["data"]["source"]) == (value, f"/{odd}")
            # A consumer's name does not end in a space.
            registering = ask("/progress", "PUT", consumer=value.rstrip(), cursor=end)
            assert registering.status_code == 200
            for route in ("/events", "/lag", "/splits", "/cursor-of-count"):
                assert kind(ask(route, cursor=f"2-1-{value}", count=2, events=2)) == "bad-cursor"
    with engine.connect() as connection:
        registered = connection.execute(sa.select(kept["progress"].table.c.consumer)).scalars()
        assert {*registered} == {*map(str.rstrip, VALUES)}
        assert connection.scalar(sa.select(sa.func.count()).select_from(table)) == len(VALUES)


@pytest.mark.parametrize("place", PLACES, ids="-".join)
def test_hostile_texts_of_a_consumer_are_texts(engine):
    """Names of consumers and cursors are kept and compared character by character."""
    store = new_store(engine)
    for value in VALUES:
        load(store, 0, start=value, name=value)
    for value in VALUES:
        place = load(store, 0, start="never", name=value)
        assert place.cursor == value
        call(store, store.advance, 0, place, f"{value} moved", name=value)
    found = [load(store, 0, start="never", name=value).cursor for value in VALUES]
    assert found == [f"{value} moved" for value in VALUES]
