"""`zeroeventhub cursors` and `lag`: an operator shows cursors, sets them, and sees the lag."""

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from harness import registered
from harness.command_line import invoke, output_of
from harness.readers import client_of, mounted
from harness.shop import metadata, orders
from harness.spark import write_checkpoint
from harness.statements import add, execute, scalars
from harness.stores import NAME, advance, call, claim, enter, leave, load, move, new_store, unseen
from harness.trimmed import trim

from zeroeventhub import FIRST, LAST, Layout, TableFeed
from zeroeventhub.consumer.steps import Place
from zeroeventhub.errors import Fenced, Forbidden
from zeroeventhub.server import everybody

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
UNCOUNTED = {"again": None, "left_out": None, "exact": False}


def run(*arguments, answer=None):
    """Run a command of the group."""
    return invoke("cursors", *arguments, answer=answer)


@pytest.fixture
def store(any_engine):
    """A store in which billing has cursors in two partitions."""
    store = new_store(any_engine)
    load(store, 0, start="a")
    load(store, 1, start="b")
    return store


def stands(store):
    """Return the cursors of billing."""
    return call(store, store.cursors)


def test_list_and_show_say_where_consumers_stand(store, any_database_url, of_billing):
    """List has a line for each consumer, show one for each partition, JSON the same."""
    call(store, store.load, 0, name="audit")
    claim(store, "host:1", [0])
    enter(store, 0, "host:1")
    call(store, store.end, 1, Place("b"))
    listed = run("list", "--store", any_database_url).stdout.splitlines()
    assert listed[0].startswith("audit: partitions 1, processes 0, moved ")
    assert listed[1].startswith("billing: partitions 2, processes 1, moved ")
    (document,) = json.loads(run("list", *of_billing, "--json").stdout)
    assert (document["consumer"], document["partitions"]) == (NAME, 2)
    shown = run("show", *of_billing).stdout.splitlines()
    assert "partition 0: a; " in shown[0]
    assert "; read by host:1, whose lease ends in " in shown[0]
    assert shown[1].endswith("; read to its end")
    first, _ = json.loads(run("show", *of_billing, "--json").stdout)
    assert (first["cursor"], first["ended"], first["owner"]) == ("a", False, "host:1")
    assert 0 < first["lease_seconds"] <= 30


def test_halted_partition_is_shown_with_its_error(store, any_database_url, of_billing):
    """List counts partitions that halted, and show has the error in a line that stays one."""
    error = ValueError(f"no such customer\x1b[2J{'x' * 200}\n[SQL: SELECT 1]")
    call(store, store.record_failure, 0, Place("a"), error=error, tries=3, pause=None)
    assert run("list", "--store", any_database_url).stdout.endswith(", halted 1\n")
    assert json.loads(run("list", *of_billing, "--json").stdout)[0]["halted"] == 1
    shown, other = run("show", *of_billing).stdout.splitlines()
    assert " after 3 tries: ValueError: no such customer\\x1b[2Jxxx" in shown
    assert shown.endswith("…")
    assert "halted" not in other
    found, _ = json.loads(run("show", *of_billing, "--json").stdout)
    assert (found["error"], found["tries"]) == (f"ValueError: {error}", 3)
    assert datetime.fromisoformat(found["halted_at"]).tzinfo is not None


@pytest.mark.parametrize(("pause", "due"), [(1e6, r"in \d+ s"), (-1.0, "due")])
def test_retries_are_shown_with_the_last_error(store, any_database_url, of_billing, pause, due):
    """List counts partitions that are retried, and show says since when and when next."""
    error = ValueError("no such customer")
    call(store, store.record_failure, 0, Place("a"), error=error, tries=2, pause=pause)
    assert run("list", "--store", any_database_url).stdout.endswith(", retried 1\n")
    (document,) = json.loads(run("list", *of_billing, "--json").stdout)
    assert (document["halted"], document["retried"]) == (0, 1)
    shown, _ = run("show", *of_billing).stdout.splitlines()
    said = rf"; retried since .+, failed tries 2, the next one {due}: ValueError: {error}$"
    assert re.search(said, shown)
    found, _ = json.loads(run("show", *of_billing, "--json").stdout)
    assert datetime.fromisoformat(found["retried_since"]).tzinfo is not None
    assert found["retry_seconds"] == pytest.approx(pause, abs=60)


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
    (changed,) = json.loads(done.stdout)["partitions"]
    assert changed == {"partition": 1, "before": "b", "cursor": LAST, **UNCOUNTED}
    assert stands(store) == {0: "c", 1: LAST}
    done = run("reset", *of_billing, "--partition", 1, "--to", "z", "--yes")
    assert (done.exit_code, stands(store)) == (0, {0: "c", 1: "z"})


def test_reset_empties_tables_in_its_transaction(postgresql, postgresql_url):
    """Cursors go back and tables are emptied together; if rows cannot go, nothing is changed."""
    store = new_store(postgresql)
    load(store, 0, start="a")
    execute(postgresql, "CREATE TABLE parent (n INTEGER PRIMARY KEY)")
    execute(postgresql, "CREATE TABLE child (n INTEGER REFERENCES parent (n))")
    execute(postgresql, "INSERT INTO parent VALUES (1), (2)", "INSERT INTO child VALUES (1)")
    reset = ("reset", "--store", postgresql_url, "--consumer", NAME, "--yes", "--json")
    refused = run(*reset, "--empty", "parent")
    assert (refused.exit_code, stands(store)) == (1, {0: "a"})
    assert refused.stderr.startswith("Error: The database refused: ")
    assert len(refused.stderr.splitlines()) == 1
    missing = run(*reset, "--empty", "child", "--empty", "nothing")
    assert (missing.exit_code, stands(store)) == (2, {0: "a"})
    done = run(*reset, "--empty", "child", "--empty", "parent")
    assert json.loads(done.stdout)["deleted"] == {"child": 1, "parent": 2}
    assert stands(store) == {0: FIRST}
    assert scalars(postgresql, "SELECT count(*) FROM parent") == [0]


def test_names_cannot_talk_to_the_terminal(sqlite, sqlite_url):
    """The names of consumers and processes are shown without control characters."""
    store = new_store(sqlite)
    evil = "\x1b[2J\n\u202e\x9b"
    call(store, store.load, 0, name=evil)
    call(store, store.leases.claim, evil, [0], seconds=30, share=True, name=evil)
    for arguments in (("list",), ("show", "--consumer", evil), ("show", "--consumer", "x")):
        shown = run(*arguments, "--store", sqlite_url)
        assert (shown.stdout + shown.stderr).removesuffix("\n").isprintable()
    assert json.loads(run("list", "--store", sqlite_url, "--json").stdout)[0]["consumer"] == evil


def test_set_goes_on_where_a_stream_of_spark_ended(store, of_billing, tmp_path):
    """All partitions are put where the stream's last committed batch ends, after one question."""
    end = {"cursors": {"0": "k", "2": "m"}, "startsAfter": {"2": "0"}, "cursorFrom": {"2": ["1"]}}
    checkpoint = write_checkpoint(tmp_path, [[{"cursors": {"0": "c"}}], [end]])
    arguments = ("set", *of_billing, "--from-spark-checkpoint", checkpoint)
    asked = run(*arguments, answer="n\n")
    assert (asked.exit_code, stands(store)) == (1, {0: "a", 1: "b"})
    assert "partition 0: a -> k\n  partition 2: none -> m" in asked.stderr
    done = run(*arguments, "--yes", "--json")
    assert json.loads(done.stdout)["partitions"] == [
        {"partition": 0, "before": "a", "cursor": "k", **UNCOUNTED},
        {"partition": 2, "before": None, "cursor": "m", **UNCOUNTED},
    ]
    assert stands(store) == {0: "k", 1: "b", 2: "m"}


def test_set_refuses_what_would_leave_events_out(store, of_billing, tmp_path):
    """A consumer that has been where the stream has not keeps its cursors, unless it is reset."""
    checkpoint = write_checkpoint(tmp_path, [[None, {"cursors": {"0": "k"}}]])
    arguments = ("set", *of_billing, "--from-spark-checkpoint", checkpoint, "--yes")
    assert run(*arguments).exit_code == 2
    refused = run(*arguments, "--source", 1)
    assert (refused.exit_code, refused.stdout, stands(store)) == (2, "", {0: "a", 1: "b"})
    assert "has a cursor in partition 1, which the stream has not begun" in refused.stderr
    assert run("reset", *of_billing, "--partition", 1, "--yes").exit_code == 0
    assert run(*arguments, "--source", 1).exit_code == 0
    assert stands(store) == {0: "k", 1: FIRST}


def test_seek_puts_cursors_before_a_moment(feed, sqlite, sqlite_url):
    """The consumer goes on with the first event of a moment or later, in each partition."""
    store = new_store(sqlite)
    load(store, 1, start="b")
    options = ("--store", sqlite_url, "--consumer", NAME, "--yes")
    for wrong in ("noon", "2026-01-31T12:00:00+99:00"):
        assert run("seek", feed, "--time", wrong, *options).exit_code == 2
    assert stands(store) == {1: "b"}
    moment = (NOON + timedelta(seconds=10)).isoformat()
    done = run("seek", feed, "--time", moment, *options, "--partition", 0)
    assert (done.exit_code, set(stands(store))) == (0, {0, 1}), done.stderr
    assert run("seek", feed, "--time", moment, *options).exit_code == 0
    for partition, cursor in stands(store).items():
        place = ("--partition", partition, "--from", cursor, "--limit", 1)
        assert json.loads(invoke("tail", feed, *place).stdout)["data"] == {"n": 10 + partition}


def cursors_after(feed, count):
    """Return the cursors after so many events of each partition of a feed."""
    with client_of(feed) as client:
        return [client.fetch(number, FIRST, limit=count).cursor for number in (0, 1)]


def test_operator_learns_how_many_events_are_read_again(feed, sqlite, sqlite_url):
    """What is read again and what is left out is counted by the feed and said before it is done,
    with what that does to effects, and again in the result.
    """
    store = new_store(sqlite)
    before, further = cursors_after(feed, 20), cursors_after(feed, 45)
    options = ("--store", sqlite_url, "--consumer", NAME)
    for partition, cursor in enumerate(before):
        load(store, partition, start=cursor)
    moment = (NOON + timedelta(seconds=30)).isoformat()
    asked = run("seek", feed, "--time", moment, *options, answer="n\n")
    assert (asked.exit_code, stands(store)) == (1, dict(enumerate(before)))
    assert "; read again: 5\n" in asked.stderr
    assert (
        "About 10 events are read again: effects that are there are applied a second time, unless "
        "`apply` replaces them." in asked.stderr
    )
    unseen(store, ["1", "2"])
    asked = run("seek", feed, "--time", moment, *options, answer="n\n")
    assert "its inbox skips those that it knows (2 events); other effects" in asked.stderr
    advance(store, load(store, 1), 0, 0, 3, partition=1)
    asked = run("seek", feed, "--time", moment, *options, answer="n\n")
    assert "Lanes have applied a part of a page: what follows a new cursor" in asked.stderr
    place = ("set", *options, "--partition", 1, "--feed", feed)
    asked = run(*place, further[1], answer="n\n")
    assert "About 25 events are left out, and never take effect." in asked.stderr
    asked = run(*place, before[1], answer="n\n")
    assert "No event is read again or left out." in asked.stderr
    done = json.loads(run(*place, further[1], "--yes", "--json").stdout)["partitions"]
    between = {"again": 0, "left_out": 25, "exact": True}
    assert done == [{"partition": 1, "before": before[1], "cursor": further[1], **between}]
    assert run(*place, "1-77-0000-0000000000", "--yes").exit_code == 2
    refused = run("set", *options, "--partition", 7, "--feed", feed, "first", "--yes")
    assert (refused.exit_code, sorted(stands(store))) == (2, [0, 1])
    assert "The feed has no partition 7; it has 0, 1." in refused.stderr
    asked = run("reset", *options, "--feed", feed, answer="n\n")
    assert "About 65 events are read again: effects that are there" in asked.stderr
    asked = run("reset", *options, "--feed", feed, "--empty", "orders", answer="n\n")
    assert "All rows of orders are deleted. About 65 events are read again: their" in asked.stderr
    asked = run("reset", *options, "--to", "last", "--empty", "orders", answer="n\n")
    assert "All rows of orders are deleted. " in asked.stderr
    refused = run("reset", *options, "--partition", 0, "--empty", "orders", "--yes")
    assert (refused.exit_code, stands(store)[0]) == (2, before[0])
    assert "--empty deletes the rows of all partitions" in refused.stderr
    asked = run("reset", *options, answer="n\n")
    assert "left out: --feed URL lets the feed count them. Where" in asked.stderr
    done = json.loads(run("reset", *options, "--feed", feed, "--yes", "--json").stdout)
    assert [move["again"] for move in done["moves"]] == [20, 45]


def test_cursor_of_a_lost_history_is_not_counted(feed, sqlite, sqlite_url):
    """A cursor that the feed no longer knows is no reason not to leave it."""
    load(new_store(sqlite), 0, start="2-9999-ffff-ffffffffff")
    options = ("--store", sqlite_url, "--consumer", NAME, "--feed", feed)
    done = output_of("cursors", "reset", *options, "--yes", "--json")
    assert json.loads(done)["moves"][0]["again"] is None


def test_consumer_of_a_dropped_partition_gets_another_name_at_its_publisher(
    registering, of_billing
):
    """A cursor in a partition that the feed no longer has is renamed, and not registered."""
    url, store, feed = registering
    load(store, 7, start="c")
    output_of("cursors", "rename", *of_billing, "invoices", "--feed", url)
    assert {name for _, name, _ in registered.heard(feed)} == {"invoices"}


@pytest.fixture
def registering(any_engine):
    """The URL of a feed at which billing has registered, with its consumer in the same database."""
    metadata.create_all(any_engine)
    registered.fill(any_engine)
    store, feed = new_store(any_engine), registered.source().bind(any_engine)
    for partition in (0, 1):
        cursor = feed.read(partition, FIRST, 4).cursor
        load(store, partition, start=cursor)
        feed.register_progress(NAME, partition, cursor)
    with registered.served(any_engine) as url:
        yield url, store, feed


def test_consumer_gets_another_name_also_at_its_publisher(registering, of_billing):
    """A consumer keeps its cursors under its new name, and trimming waits for that one instead,
    also after the command is repeated.
    """
    url, store, feed = registering
    before, heard = stands(store), registered.heard(feed)
    refused = run("rename", *of_billing, NAME)
    assert (refused.exit_code, stands(store)) == (2, before)
    done = run("rename", *of_billing, "invoices", "--feed", url, "--json")
    assert json.loads(done.stdout) == {"consumer": "invoices", "partitions": 2, "registered": 2}
    assert (stands(store), call(store, store.cursors, name="invoices")) == ({}, before)
    of_invoices = {
        (principal, "invoices", partition): position
        for (principal, _, partition), position in heard.items()
    }
    assert registered.heard(feed) == of_invoices
    assert run("rename", *of_billing, "invoices", "--feed", url).exit_code == 0
    assert registered.heard(feed) == of_invoices
    assert run("rename", *of_billing, "bills").exit_code == 2
    store_of = of_billing[:2]
    feed.forget_progress("invoices")
    done = run("rename", *store_of, "--consumer", "invoices", "bills", "--feed", url)
    assert done.stdout.splitlines() == [
        "Consumer invoices is now bills, in 2 partitions.",
        "Withdrawn at the publisher: 0 cursors",
    ]
    assert registered.heard(feed) == {}


def test_renamed_consumer_is_registered_where_it_goes_on(registering, of_billing, any_engine):
    """After a redistribution that the consumer has not seen, its new name is registered at its
    cursors in the partitions that replace its own.
    """
    _, _, feed = registering
    before = {partition: position for (_, _, partition), position in registered.heard(feed).items()}
    with registered.served(any_engine, redistributed()) as url:
        output_of("cursors", "rename", *of_billing, "invoices", "--feed", url)
    heirs = {2: before[0], 3: before[1], 4: before[0], 5: before[1]}
    assert registered.heard(feed) == {("", "invoices", one): at for one, at in heirs.items()}


def test_renamed_consumer_that_was_set_back_is_registered_at_the_beginning(registering, of_billing):
    """Trimming waits for the new name also in a partition in which it starts again."""
    url, store, feed = registering
    call(store, store.set, 0, FIRST)
    output_of("cursors", "rename", *of_billing, "invoices", "--feed", url)
    assert registered.heard(feed) == {("", "invoices", 0): 0, ("", "invoices", 1): 8}
    assert feed.plan_trim(below=10).until == 0


def test_consumer_that_has_lost_events_gets_another_name_at_its_publisher(registering, of_billing):
    """A cursor whose events were trimmed is no reason to keep events for the old name."""
    url, _, feed = registering
    feed.forget_progress(NAME)
    trim(feed, 12)
    feed.register_progress(NAME, 1, feed.read(1, FIRST, 4).cursor)
    output_of("cursors", "rename", *of_billing, "invoices", "--feed", url)
    assert NAME not in {consumer for _, consumer, _ in registered.heard(feed)}


def redistributed():
    """Return that feed after each of its partitions was replaced by two, of which one is empty."""
    layout = Layout.of(2).redistribute(by=2)
    return registered.source(partition=orders.c.part + 2, partitions=layout)


def test_events_are_counted_from_inherited_cursors(registering, of_billing, any_engine):
    """In a partition that has replaced that of the consumer, events count from its cursor there; in
    one that is gone, the command cannot count them.
    """
    _, store, _ = registering
    with registered.served(any_engine, redistributed()) as url:
        done = run("set", *of_billing, "--partition", 2, "last", "--feed", url, "--yes", "--json")
        (moved,) = json.loads(done.stdout)["partitions"]
        assert (moved["again"], moved["left_out"], moved["exact"]) == (0, 6, True)
        load(store, 7, start="c")
        done = run("reset", *of_billing, "--feed", url, "--yes", "--json")
        moves = {one["partition"]: one["again"] for one in json.loads(done.stdout)["moves"]}
    assert moves == {0: None, 1: None, 2: 10, 7: None}
    assert stands(store) == dict.fromkeys(moves, FIRST)


def test_consumer_is_forgotten_also_at_its_publisher(registering, of_billing):
    """Nothing is left of a consumer, and trimming no longer waits for it; the question says what
    is lost, and a consumer that runs is not forgotten.
    """
    url, store, feed = registering
    claim(store, "host:1", [0])
    running = run("forget", *of_billing, "--feed", url, "--yes")
    assert (running.exit_code, len(feed.registered())) == (2, 2)
    assert "runs in the process 'host:1': end it first" in running.stderr
    leave(store, "host:1")
    asked = run("forget", *of_billing, "--feed", url, answer="n\n")
    assert (asked.exit_code, len(feed.registered()), len(stands(store))) == (1, 2, 2)
    assert "its cursors in 2 partitions, 0 dead letters" in asked.stderr
    done = run("forget", *of_billing, "--feed", url, "--yes")
    assert (done.exit_code, stands(store), feed.registered()) == (0, {}, [])
    assert done.stdout.splitlines()[1] == "Withdrawn at the publisher: 2 cursors"
    assert run("forget", *of_billing, "--yes").exit_code == 2


def test_command_is_repeated_if_the_publisher_fails(registering, of_billing, any_engine):
    """What the store has done stays, and the same command does the rest at the publisher."""
    url, store, feed = registering
    before = stands(store)
    rename = ("rename", *of_billing, "invoices")
    forget = ("forget", *of_billing[:2], "--consumer", "invoices", "--yes")
    with registered.served(any_engine, authorize=_refuse_changes) as failing:
        for _ in range(2):
            assert run(*rename, "--feed", failing).exit_code == 2
            assert call(store, store.cursors, name="invoices") == before
        assert {consumer for _, consumer, _ in registered.heard(feed)} == {NAME}
        assert run(*rename, "--feed", url).exit_code == 0
        assert {consumer for _, consumer, _ in registered.heard(feed)} == {"invoices"}
        assert run(*forget, "--feed", failing).exit_code == 2
        assert len(registered.heard(feed)) == 2
    done = run(*forget, "--feed", url)
    assert (done.exit_code, registered.heard(feed)) == (0, {})
    assert done.stdout.startswith("Deleted: nothing, as there was nothing\n")


def _refuse_changes(request):
    if request.method in {"PUT", "DELETE"}:
        raise Forbidden("not now")
    return everybody(request)


@pytest.mark.parametrize("command", [("rename", "invoices"), ("forget", "--yes")])
def test_feed_without_registrations_is_refused_before_anything_changes(
    registering, of_billing, any_engine, command
):
    """A feed at which no consumer registers, or that does not answer, leaves the store as it is."""
    _, store, _ = registering
    before = stands(store)
    with mounted(registered.source(progress=None), any_engine) as plain:
        refused = run(*command, *of_billing, "--feed", plain)
    assert (refused.exit_code, stands(store)) == (2, before)
    assert "leave out --feed" in refused.stderr
    assert run(*command, *of_billing, "--feed", "http://127.0.0.1:9/orders").exit_code == 1
    assert stands(store) == before


def test_copy_continues_where_the_consumer_is(store, of_billing):
    """A copy has the same cursors under another name, which must be free."""
    claim(store, "host:1", [0])
    done = run("copy", *of_billing, "shadow", "--json")
    assert json.loads(done.stdout) == {"consumer": "shadow", "copied": {"cursors": 2}}
    assert call(store, store.cursors, name="shadow") == stands(store) == {0: "a", 1: "b"}
    refused = run("copy", *of_billing, "shadow")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "has a consumer 'shadow' already" in refused.stderr


ONE_WAY = "Give --partition and a cursor, or --from-spark-checkpoint"
SET, RESET = ("set", "--consumer", NAME), ("reset", "--consumer", NAME)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("show", "--consumer", "biling"), "This store has no consumer 'biling'; it has billing."),
        ((*RESET, "--to", "z"), ""),
        ((*RESET, "--partition", 7), ""),
        ((*SET, "--partition", 0, "ä"), "A cursor has 1 to 4096"),
        (SET, ONE_WAY),
        ((*SET, "--partition", 0), ONE_WAY),
        ((*SET, "--partition", 0, "k", "--from-spark-checkpoint", "x"), ONE_WAY),
        ((*SET, "--from-spark-checkpoint", "{checkpoint}"), "A partition's id"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(sqlite, sqlite_url, tmp_path, arguments, sentence):
    """Each refusal is one line, exit code 2, and nothing is changed."""
    store = new_store(sqlite)
    load(store, 0, start="a")
    checkpoint = write_checkpoint(tmp_path, [[{"cursors": {"0": "k", "40000": "m"}}]])
    command, *rest = (str(word).replace("{checkpoint}", checkpoint) for word in arguments)
    agreed = () if command == "show" else ("--yes",)
    refused = run(command, "--store", sqlite_url, *rest, *agreed)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"Error: {sentence}")
    assert len(refused.stderr.splitlines()) == 1
    assert stands(store) == {0: "a"}


def test_consumer_that_is_not_among_many_is_refused_briefly(sqlite, sqlite_url):
    """A refusal lists some of the consumers that there are, and says how many more."""
    store = new_store(sqlite)
    for number in range(23):
        call(store, store.load, 0, name=f"c{number:02}")
    refused = run("show", "--store", sqlite_url, "--consumer", "c")
    assert "has no consumer 'c'; it has c00, c01, " in refused.stderr
    assert refused.stderr.endswith(", c18, c19 and 3 more.\n")


def test_lag_is_shown_for_people_and_for_machines(any_engine, of_billing):
    """A table for people has a line for each partition; JSON has the same in numbers."""
    metadata.create_all(any_engine)
    ago = datetime.now(UTC) - timedelta(minutes=90)
    add(any_engine, orders, [{"part": n % 2, "placed": ago, "data": {}} for n in range(2500)])
    feed = TableFeed(orders, data="data", time="placed", partition="part", partitions=2)
    load(new_store(any_engine), 0, start=feed.bind(any_engine).read(0, FIRST, 1248).cursor)
    with mounted(feed, any_engine) as url:
        shown = invoke("lag", url, *of_billing)
        as_json = invoke("lag", url, *of_billing, "--json")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout == (
        "partition  events  behind\n        0       2   1.5 h\n        1   1,250   1.5 h\n"
    )
    document = json.loads(as_json.stdout)
    assert document["consumer"] == NAME
    assert all(5400 <= lag.pop("seconds") < 5520 for lag in document["partitions"])
    assert document["partitions"] == [
        {"partition": 0, "events": 2, "exact": True, "held_back": 0},
        {"partition": 1, "events": 1250, "exact": True, "held_back": 0},
    ]
