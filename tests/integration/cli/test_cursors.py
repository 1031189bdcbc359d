"""`zeroeventhub cursors`: an operator shows cursors and puts them elsewhere."""

import json
import threading
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from harness.command_line import invoke
from harness.shop import metadata, orders, place
from harness.spark_checkpoint import write_checkpoint
from harness.stores import NAME, call, claim, enter, load, move, new_store
from harness.web import serving
from sqlalchemy import Column, Integer, MetaData, Table, insert, select, text
from starlette.applications import Starlette

from zeroeventhub import FIRST, LAST, Client, Consumer, TableFeed, feed_routes
from zeroeventhub._follow import Place
from zeroeventhub.errors import Fenced
from zeroeventhub.layout import Layout
from zeroeventhub.publisher.partition_hash import hash_on_connect, layout_expression

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def run(*arguments, answer=None):
    """Run a command of the group."""
    return invoke("cursors", *arguments, answer=answer)


@pytest.fixture
def store(any_engine):
    """A store in which billing stands somewhere in two partitions."""
    store = new_store(any_engine)
    load(store, 0, start="a")
    load(store, 1, start="b")
    return store


@pytest.fixture
def of_billing(any_database_url):
    """The options that name the store and the consumer."""
    return ("--store", any_database_url, "--consumer", NAME)


def stands(store):
    """Return the cursors of billing."""
    return call(store, store.cursors)


def test_list_and_show_say_where_consumers_stand(store, any_database_url, of_billing):
    """List has a line for each consumer, show one for each partition, JSON the same."""
    call(store, store.load, 0, name="audit")
    claim(store, "host:1", [0])
    enter(store, 0, "host:1")
    with store.engine.begin() as connection:
        store.confirm(connection.execute(store.end(NAME, 1, Place("b"))), NAME, 1)
    listed = run("list", "--store", any_database_url).stdout.splitlines()
    assert [line.partition(", moved ")[0] for line in listed] == [
        "audit: partitions 1, processes 0",
        "billing: partitions 2, processes 1",
    ]
    documents = json.loads(run("list", *of_billing, "--json").stdout)
    assert [(one["consumer"], one["partitions"]) for one in documents] == [(NAME, 2)]
    shown = run("show", *of_billing).stdout.splitlines()
    assert shown[0].startswith("partition 0: a; epoch 1; moved ")
    assert "; read by host:1, for " in shown[0]
    assert shown[1].startswith("partition 1: b; epoch 0; moved ")
    assert shown[1].endswith("; read to its end")
    first, _ = json.loads(run("show", *of_billing, "--json").stdout)
    moved = datetime.fromisoformat(first.pop("updated_at"))
    assert abs(datetime.now(UTC) - moved) < timedelta(minutes=1)
    assert 0 < first.pop("lease_seconds") <= 30
    assert first == {
        "consumer": NAME,
        "partition": 0,
        "cursor": "a",
        "epoch": 1,
        "ended": False,
        "owner": "host:1",
    }


def test_set_puts_one_cursor_elsewhere(store, of_billing):
    """A cursor is set by its name or as it is, after a question that shows both."""
    asked = run("set", *of_billing, "--partition", 0, "c", answer="y\n")
    assert (asked.exit_code, asked.stdout) == (0, "partition 0: a -> c\n")
    assert "partition 0: a -> c" in asked.stderr
    with pytest.raises(Fenced):
        move(store, 0, Place("a"), "d")
    assert run("set", *of_billing, "--partition", 0, "x", answer="n\n").exit_code == 1
    assert stands(store) == {0: "c", 1: "b"}
    done = run("set", *of_billing, "--partition", 1, "last", "--yes", "--json")
    assert json.loads(done.stdout) == {
        "consumer": NAME,
        "partitions": [{"partition": 1, "before": "b", "cursor": LAST}],
    }
    assert stands(store) == {0: "c", 1: LAST}


def test_reset_empties_tables_in_its_transaction(store, of_billing):
    """Cursors go back and tables are emptied together, or neither."""
    totals = Table("totals", MetaData(), Column("n", Integer, primary_key=True))
    totals.metadata.create_all(store.engine)
    with store.engine.begin() as connection:
        connection.execute(insert(totals), [{"n": 1}, {"n": 2}])
        connection.execute(text("CREATE TABLE held (n INTEGER PRIMARY KEY REFERENCES totals (n))"))
    missing = run("reset", *of_billing, "--empty", "totals", "--empty", "nothing", "--yes")
    assert (missing.exit_code, stands(store)) == (2, {0: "a", 1: "b"})
    done = run("reset", *of_billing, "--empty", "held", "--empty", "totals", "--yes", "--json")
    assert json.loads(done.stdout) == {
        "consumer": NAME,
        "partitions": 2,
        "deleted": {"held": 0, "totals": 2},
    }
    assert stands(store) == {0: FIRST, 1: FIRST}
    with store.engine.connect() as connection:
        assert connection.execute(select(totals)).all() == []


def test_reset_that_cannot_empty_a_table_changes_nothing(postgresql, postgresql_url):
    """If the rows of a table cannot go, the cursors stay where they are."""
    store = new_store(postgresql)
    load(store, 0, start="a")
    with postgresql.begin() as connection:
        connection.execute(text("CREATE TABLE parent (n INTEGER PRIMARY KEY)"))
        connection.execute(text("CREATE TABLE child (n INTEGER REFERENCES parent (n))"))
        connection.execute(text("INSERT INTO parent VALUES (1)"))
        connection.execute(text("INSERT INTO child VALUES (1)"))
    options = ("--store", postgresql_url, "--consumer", NAME, "--yes")
    refused = run("reset", *options, "--empty", "parent")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("Error: The database refused: ")
    assert len(refused.stderr.splitlines()) == 1
    assert stands(store) == {0: "a"}


def test_reset_of_some_partitions_goes_where_it_is_told(store, of_billing):
    """One partition may start again at a cursor of its own, the others stay."""
    done = run("reset", *of_billing, "--partition", 1, "--to", "z", "--yes")
    assert (done.exit_code, stands(store)) == (0, {0: "a", 1: "z"})
    for wrong in (("--to", "z"), ("--partition", 7)):
        refused = run("reset", *of_billing, *wrong, "--yes")
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert len(refused.stderr.splitlines()) == 1
    assert stands(store) == {0: "a", 1: "z"}


def test_seek_puts_cursors_before_a_moment(sqlite, sqlite_url):
    """The consumer goes on with the first event of a moment or later, in each partition."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        rows = [
            {"part": n % 2, "placed": NOON + timedelta(seconds=n), "data": {"n": n}}
            for n in range(20)
        ]
        connection.execute(insert(orders), rows)
    feed = TableFeed(orders, data="data", time="placed", partition="part", partitions=2)
    store = new_store(sqlite)
    load(store, 1, start="b")
    options = ("--store", sqlite_url, "--consumer", NAME, "--yes")
    with serving(Starlette(routes=feed_routes("/orders", feed, sqlite))) as url:
        address = f"{url}/orders"
        for wrong in ("noon", "2026-01-31T12:00:00"):
            assert run("seek", address, "--time", wrong, *options).exit_code == 2
        assert stands(store) == {1: "b"}
        moment = (NOON + timedelta(seconds=10)).isoformat()
        done = run("seek", address, "--time", moment, *options, "--partition", 0)
        assert (done.exit_code, set(stands(store))) == (0, {0, 1}), done.stderr
        assert run("seek", address, "--time", moment, *options).exit_code == 0
    bound = feed.bind(sqlite)
    firsts = [bound.read(number, stands(store)[number], 1).events[0].data for number in (0, 1)]
    assert firsts == [{"n": 10}, {"n": 11}]


def test_rebuild_while_a_page_is_applied(sqlite, sqlite_url):
    """A reset waits for the page at hand, and a page of before is not committed behind it."""
    store = new_store(sqlite)
    place_before = load(store, 0, start="a")
    results = []
    with sqlite.connect() as connection:
        connection.execute(store.move(NAME, 0, place_before, "b"))
        options = ("reset", "--store", sqlite_url, "--consumer", NAME, "--yes")
        thread = threading.Thread(target=lambda: results.append(run(*options)))
        thread.start()
        thread.join(timeout=0.3)
        assert results == []
        connection.commit()
        thread.join(timeout=30)
    assert (results[0].exit_code, stands(store)) == (0, {0: FIRST})
    with pytest.raises(Fenced):
        move(store, 0, Place("b"), "c")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("show", "--consumer", "biling"), "This store has no consumer 'biling'; it has billing."),
        (("reset", "--consumer", "biling", "--yes"), "This store has no consumer 'biling'"),
        (("set", "--consumer", NAME, "--partition", 0, "ä", "--yes"), "A cursor has 1 to 4096"),
        (("set", "--consumer", "x" * 201, "--partition", 0, "a", "--yes"), "A consumer's name"),
        (("set", "--consumer", NAME, "--partition", 40000, "a", "--yes"), "A partition's id"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(sqlite, sqlite_url, arguments, sentence):
    """Each refusal is one line, exit code 2, and nothing is changed."""
    store = new_store(sqlite)
    load(store, 0, start="a")
    command, *rest = arguments
    refused = run(command, "--store", sqlite_url, *rest)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"Error: {sentence}")
    assert len(refused.stderr.splitlines()) == 1
    assert stands(store) == {0: "a"}


def test_database_without_a_store_is_told(sqlite, sqlite_url, tmp_path):
    """A database that no consumer has written to is named, and nothing is created in it."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        place(connection, 1)
    refused = run("list", "--store", sqlite_url)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "has no table zeroeventhub_cursors" in refused.stderr
    missing = run("list", "--store", f"sqlite:///{tmp_path / 'nothing.db'}")
    assert (missing.exit_code, "There is no database file" in missing.stderr) == (2, True)
    assert not (tmp_path / "nothing.db").exists()


def test_names_cannot_talk_to_the_terminal(sqlite, sqlite_url):
    """What consumers and processes call themselves is shown without control characters."""
    store = new_store(sqlite)
    evil = "\x1b[2J\n\u202e\x9b"
    call(store, store.load, 0, name=evil)
    call(store, store.leases.claim, evil, [0], seconds=30, share=True, name=evil)
    for arguments in (("list",), ("show", "--consumer", evil), ("show", "--consumer", "x")):
        shown = run(*arguments, "--store", sqlite_url)
        text_shown = (shown.stdout + shown.stderr).removesuffix("\n")
        assert text_shown.isprintable(), text_shown
    assert json.loads(run("list", "--store", sqlite_url, "--json").stdout)[0]["consumer"] == evil


def test_set_goes_on_where_a_stream_of_spark_ended(store, of_billing, tmp_path):
    """All partitions are put where the stream's last committed batch ends, after one question."""
    ends = [
        {"cursors": {"0": "k", "2": "m"}, "startsAfter": {"2": "0"}, "cursorFrom": {"2": ["1"]}}
    ]
    checkpoint = write_checkpoint(tmp_path, [[{"cursors": {"0": "c"}}], ends])
    arguments = ("set", *of_billing, "--from-spark-checkpoint", checkpoint)
    asked = run(*arguments, answer="n\n")
    assert (asked.exit_code, stands(store)) == (1, {0: "a", 1: "b"})
    assert "partition 0: a -> k\n  partition 2: none -> m" in asked.stderr
    done = run(*arguments, "--yes", "--json")
    assert json.loads(done.stdout)["partitions"] == [
        {"partition": 0, "before": "a", "cursor": "k"},
        {"partition": 2, "before": None, "cursor": "m"},
    ]
    assert stands(store) == {0: "k", 1: "b", 2: "m"}


def test_set_refuses_what_would_leave_events_out(store, of_billing, tmp_path):
    """A consumer that has been where the stream has not keeps its cursors, unless it is reset."""
    checkpoint = write_checkpoint(tmp_path, [[None, {"cursors": {"0": "k"}}]])
    arguments = ("set", *of_billing, "--from-spark-checkpoint", checkpoint, "--yes")
    unclear = run(*arguments)
    assert (unclear.exit_code, unclear.stdout) == (2, "")
    refused = run(*arguments, "--source", 1)
    assert (refused.exit_code, refused.stdout, stands(store)) == (2, "", {0: "a", 1: "b"})
    assert "has a cursor in partition 1, which the stream has not begun" in refused.stderr
    assert run("reset", *of_billing, "--partition", 1, "--yes").exit_code == 0
    assert run(*arguments, "--source", 1).exit_code == 0
    assert stands(store) == {0: "k", 1: FIRST}


def test_set_from_a_checkpoint_is_all_or_nothing(store, of_billing, tmp_path):
    """If one of the stream's cursors cannot be put, none is."""
    checkpoint = write_checkpoint(tmp_path, [[{"cursors": {"0": "k", "1": "l", "40000": "m"}}]])
    refused = run("set", *of_billing, "--from-spark-checkpoint", checkpoint, "--yes")
    assert (refused.exit_code, stands(store)) == (2, {0: "a", 1: "b"})


def test_consumer_goes_on_where_a_stream_ended_before_a_change(sqlite, sqlite_url, tmp_path):
    """If partitions were redistributed since, the new ones go on from the cursors of the old."""
    hash_on_connect(sqlite)
    metadata.create_all(sqlite)
    before = Layout.of(2)

    def feed_of(layout):
        shown = layout_expression(layout, key=orders.c.customer)
        return TableFeed(orders, data="data", partition=shown, partitions=layout)

    with sqlite.begin() as connection:
        place(connection, 20)
    ends = {
        str(number): feed_of(before).bind(sqlite).read(number, LAST, 1).cursor for number in (0, 1)
    }
    checkpoint = write_checkpoint(tmp_path, [[{"cursors": ends, "token": "2"}]])
    store = new_store(sqlite)
    command = ("set", "--store", sqlite_url, "--consumer", NAME, "--yes")
    assert run(*command, "--from-spark-checkpoint", checkpoint).exit_code == 0
    with sqlite.begin() as connection:
        place(connection, 20, first=20)
    routes = feed_routes("/orders", feed_of(before.redistribute(by=2)), sqlite)
    found = []
    with serving(Starlette(routes=routes)) as url, httpx.Client() as http:
        for page in Consumer(Client(f"{url}/orders", http), store, NAME, follow=False):
            with sqlite.begin() as connection:
                page.commit(connection)
            found += [event.data["n"] for event in page.events]
    assert sorted(found) == list(range(20, 40))
    assert stands(store).keys() == {2, 3, 4, 5}


@pytest.mark.parametrize(
    "wrong",
    [
        (),
        ("--partition", 0),
        ("k",),
        ("--partition", 0, "k", "--source", 0),
        ("--partition", 0, "k", "--from-spark-checkpoint", "x"),
        ("--partition", 0, "--from-spark-checkpoint", "x"),
        ("k", "--from-spark-checkpoint", "x"),
    ],
)
def test_set_takes_one_way_at_a_time(sqlite, sqlite_url, wrong):
    """A partition and its cursor, or a checkpoint: anything else is refused in a sentence."""
    store = new_store(sqlite)
    refused = run("set", "--store", sqlite_url, "--consumer", NAME, "--yes", *wrong)
    assert (refused.exit_code, refused.stdout, stands(store)) == (2, "", {})
    assert refused.stderr.startswith("Error: Say --partition and a cursor, or --from-spark-check")
