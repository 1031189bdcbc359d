"""Consumers register their progress, and trimming waits for them."""

import time
from contextlib import suppress
from datetime import timedelta

import httpx
import pytest
from harness import readers
from harness.calling import async_call, sync_call
from harness.log import connected
from harness.published import published
from harness.registered import age, fill, heard, served, source
from harness.shop import orders, write
from harness.statements import execute
from harness.trimmed import numbers, of_another_event, position_of, trim
from sqlalchemy import event, update

from zeroeventhub import FIRST, LAST, Layout, Principal, bearer_tokens
from zeroeventhub.archive import Archive
from zeroeventhub.errors import (
    BadCursor,
    BadRequest,
    ConfigurationError,
    Diverged,
    FeedFailure,
    Forbidden,
    NotFound,
    TokenChanged,
    Trimmed,
)
from zeroeventhub.publisher import progress, reader
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import Retention

TOKENS = {name: f"{name}-0123456789abcdef" for name in ("ada", "bob", "half")}
PRINCIPALS = {
    TOKENS["ada"]: Principal(name="ada"),
    TOKENS["bob"]: Principal(name="bob"),
    TOKENS["half"]: Principal(name="half", partitions={1}),
}


def client_of(url, name=None):
    """Open a client, of a principal if there are any."""
    headers = {"Authorization": f"Bearer {TOKENS[name]}"} if name else {}
    return readers.client_of(url, {"headers": headers})


def test_trimming_waits_for_consumers_that_have_registered(feed):
    """Events that a consumer has not committed stay, and the plan names the consumer."""
    plan = feed.plan_trim(below=18)
    assert (plan.until, plan.held_back) == (17, ())
    feed.register_progress("billing", 0, feed.cursor_after(5))
    plan = feed.plan_trim(below=18)
    # Position 7 holds the next event of partition 0.
    assert (plan.until, plan.wanted) == (6, 17)
    assert plan.held_back[0].startswith(
        "Consumer 'billing' keeps what lies above position 6 in partition 0; last heard of 0:00:0"
    )
    feed.register_progress("billing", 1, feed.cursor_after(4))
    assert feed.plan_trim(below=18).until == 5
    feed.register_progress("billing", 1, feed.cursor_after(20))
    feed.register_progress("billing", 0, feed.cursor_after(9))
    assert trim(feed, 18) == 10
    assert numbers(feed, 0, feed.cursor_after(10)) == [*range(10, 20, 2)]
    feed.register_progress("billing", 0, feed.cursor_after(20))
    assert trim(feed, 18) == 7


def test_plan_goes_on_without_the_index_of_pages(any_shop):
    """Once their index is gone, the events of consumers are found in another way, as pages are."""
    feed = source().bind(any_shop)
    feed.register_progress("billing", 0, feed.cursor_after(5))
    assert feed.plan_trim(below=18).until == 6
    is_mariadb = any_shop.dialect.name == "mariadb"
    execute(any_shop, "DROP INDEX orders_by_part" + " ON orders" * is_mariadb)
    with suppress(FeedFailure):
        feed.plan_trim(below=18)
    assert feed.plan_trim(below=18).until == 6


def test_cursor_at_the_mark_stays_good_until_its_consumer_has_moved_on(any_shop, monkeypatch):
    """A consumer at the event of another partition holds the mark there, as its cursor could not be
    checked below the mark; a consumer whose partition lost no event holds nothing back, nor does
    one at the last event of a quiet partition.
    """
    feed = source(partitions=3).bind(any_shop)
    execute(any_shop, orders.update().where(orders.c.id > 3).values(part=0))
    between = feed.cursor_after(8)
    for consumer, partition, cursor in (("audit", 2, "1-0"), ("billing", 1, between)):
        feed.register_progress(consumer, partition, cursor)
    assert trim(feed, 18) == 8
    plan = feed.plan_trim(below=18)
    assert (plan.first, plan.until, len(plan.held_back)) == (None, 8, 1)
    monkeypatch.setattr(reader, "QUIET", 10)
    page = feed.read(1, between, 10)
    feed.register_progress("billing", 1, page.cursor)
    plan = feed.plan_trim(below=18)
    assert (plan.until, plan.held_back) == (17, ())
    feed.trim(plan)
    assert page.events == feed.read(1, page.cursor, 10).events == feed.read(2, "1-0", 10).events


def test_partitions_that_a_consumer_has_not_begun_are_waited_for(any_shop):
    """A consumer that still reads a partition which was split keeps the events of its children,
    and of theirs, also from a plan that was made before it registered.
    """
    split = Layout.of(2).split(0, into=2).split(2, into=2)
    layout = {"partition": "part", "partitions": split, "type": "kind"}
    feed = source(**layout).bind(any_shop)
    execute(any_shop, orders.update().where(orders.c.id > 9, orders.c.part == 0).values(part=3))
    execute(any_shop, orders.update().where(orders.c.id.in_([15, 17])).values(part=5))
    plan = feed.plan_trim(below=18)
    feed.register_progress("billing", 1, feed.cursor_after(20))
    feed.register_progress("billing", 0, feed.cursor_after(9))
    assert trim(feed, 18) == 10
    (reason,) = (one for one in feed.plan_trim(below=18).held_back if "partition 3" in one)
    assert "'billing' keeps what lies above position 10" in reason
    assert feed.trim(plan) == 0
    feed.register_progress("billing", 3, feed.cursor_after(20))
    assert feed.plan_trim(below=18).until == 14  # of partition 5, whose parent has no event
    for partition in (2, 4):
        feed.register_progress("billing", partition, "1-0")
    feed.register_progress("billing", 5, feed.cursor_after(17))
    assert trim(feed, 18) == 7
    assert [one.partition for one in feed.registered()] == [0, 1, 2, 3, 4, 5]


def test_consumer_that_reads_on_from_an_archive_is_not_waited_for(any_shop, tmp_path):
    """With an archive, a trim waits for no consumer, and deletes only what the archive has."""
    feed = source(archive=Archive(str(tmp_path))).bind(any_shop)
    feed.seal()
    write(any_shop, 5, partitions=2)
    cursor = feed.cursor_after(5)
    feed.register_progress("billing", 0, cursor)
    for below in (10, 18):
        plan = feed.plan_trim(below=below)
        assert (plan.until, plan.held_back) == (below - 1, ())
        feed.trim(plan)
        age(any_shop, 30 * 86_400)
    plan = feed.plan_trim(sealed=23)
    assert (plan.until, plan.held_back) == (20, ())
    assert len(feed.read(0, cursor, 99).events) == 10


def test_consumer_that_is_silent_is_not_waited_for(shop, feed):
    """A consumer that is silent for too long holds nothing back, and the plan warns of it."""
    feed.register_progress("billing", 0, feed.cursor_after(5))
    with pytest.raises(ConfigurationError, match="60 seconds"):
        feed.plan_trim(below=18, silence=timedelta(seconds=59))
    age(shop, 61)
    assert feed.plan_trim(below=18, silence=timedelta(seconds=60)).until == 17
    age(shop, 3 * 86_400 - 61)
    assert feed.plan_trim(below=18).until == 6
    plan = feed.plan_trim(below=18, silence=timedelta(days=2))
    assert plan.until == 17
    assert "Consumer 'billing' WILL LOSE EVENTS in partition 0" in str(plan)
    assert "3 days, 0:00:0" in str(plan)
    feed.trim(plan)
    plan = feed.plan_trim(below=20)
    assert plan.until == 19
    assert "has lost events already" in str(plan)
    assert feed.forget_progress("billing") == 1
    assert feed.plan_trim(below=20).held_back == ()


def test_silent_consumer_stays_registered_while_there_is_room(shop, feed):
    """A consumer for which trimming waits longer than usual is not forgotten for another one."""
    feed.register_progress("billing", 0, feed.cursor_after(5))
    age(shop, 8 * 86_400)
    feed.register_progress("audit", 0, feed.cursor_after(20))
    assert feed.plan_trim(below=18, silence=timedelta(days=30)).until == 6


def test_place_that_is_taken_while_a_plan_is_carried_out_is_waited_for(any_shop, any_feed):
    """A trim waits for progress registered after its plan; a place trimmed meanwhile is refused."""
    plan = any_feed.plan_trim(below=18)
    any_feed.register_progress("billing", 0, any_feed.cursor_after(5))
    assert any_feed.trim(plan) == 6
    any_feed.forget_progress("billing")
    early, visits = any_feed.cursor_after(9), []

    def trimmed(*_):
        visits.append(1)
        if len(visits) == 2:  # The place has been checked, and is not noted yet.
            with connected(any_shop.url) as beside:
                source().bind(beside).trim(plan)

    event.listen(any_shop, "checkout", trimmed)
    with pytest.raises(Trimmed):
        any_feed.register_progress("billing", 0, early)
    assert any_feed.registered() == []
    assert any_feed.plan_trim(below=18).first is None


def test_first_place_that_another_process_has_noted_is_moved(postgresql, tmp_path):
    """Two processes may register the first progress of a consumer at once."""
    published(postgresql, retention=Retention(), progress=Progress())
    fill(postgresql)
    feed = source(archive=Archive(tmp_path)).bind(postgresql)
    early, late = feed.cursor_after(5), feed.cursor_after(9)
    noted = []

    @event.listens_for(postgresql, "before_cursor_execute")
    def note(_connection, _cursor, statement, *_):
        if statement.startswith("INSERT INTO zeroeventhub_progress") and not noted:
            noted.append(statement)
            with connected(postgresql.url) as beside:
                source().bind(beside).register_progress("billing", 0, early)

    feed.register_progress("billing", 0, late)
    assert noted
    assert [one.cursor for one in feed.registered()] == [late]


def test_all_consumers_are_waited_for(any_feed):
    """The consumer with the longest lag limits a trim, also if it registers meanwhile."""
    plan = any_feed.plan_trim(below=19)
    for name, position in (("audit", 11), ("billing", 6), ("crm", 16)):
        any_feed.register_progress(name, 1, any_feed.cursor_after(position))
    assert any_feed.plan_trim(below=19).until == 7
    assert any_feed.trim(plan, rows=2) == 7
    assert position_of(any_feed.cursor_after(0)) == 7


def test_clocks_may_be_apart(any_shop, any_feed):
    """Trimming waits for a consumer whose clock is a minute slow; a fast one counts as now."""
    plan = any_feed.plan_trim(below=18)
    any_feed.register_progress("billing", 0, any_feed.cursor_after(5))
    age(any_shop, -50)
    assert [one.heard for one in any_feed.registered()] == [0]
    assert any_feed.plan_trim(below=18, silence=timedelta(seconds=60)).until == 6
    age(any_shop, 105)
    assert any_feed.trim(plan) == 6
    age(any_shop, 10)
    assert any_feed.trim(plan) == 11


def test_clock_that_is_set_back_while_a_plan_is_carried_out(any_feed, monkeypatch):
    """A trim waits for progress registered after its plan, by a clock that was set back since."""
    plan, late = any_feed.plan_trim(below=18), time.time() - 3600
    monkeypatch.setattr(time, "time", lambda: late)
    any_feed.register_progress("billing", 0, any_feed.cursor_after(5))
    assert any_feed.trim(plan) == 6


def test_what_cannot_be_a_place_is_refused(any_shop):
    """An invalid cursor or name is refused."""
    feed = source().bind(any_shop)
    early = feed.cursor_after(1)
    good = feed.cursor_after(12)
    for consumer, cursor, error in (
        ("billing", FIRST, BadCursor),
        ("billing", LAST, BadCursor),
        ("billing", "nonsense", BadCursor),
        ("billing", "1-99", Diverged),
        ("billing", of_another_event(good), Diverged),
        ("", good, BadRequest),
        ("x" * 201, good, BadRequest),
        ("two\nlines", good, BadRequest),
        ("billing ", good, BadRequest),
    ):
        with pytest.raises(error):
            feed.register_progress(consumer, 0, cursor)
    trim(feed, 5)
    with pytest.raises(Trimmed):
        feed.register_progress("billing", 1, early)
    assert feed.registered() == []
    with pytest.raises(ConfigurationError, match=r"progress=Progress\(\)"):
        source(progress=None).bind(any_shop).register_progress("billing", 0, good)


# Over HTTP.


def test_client_registers(any_shop, any_feed):
    """A client registers its consumer's progress, and the feed answers with the cursor."""
    with served(any_shop) as url, client_of(url) as client:
        assert "progress" in client.discover().extensions
        client.register_progress("Zoë & co", 1, any_feed.cursor_after(6))
        parameters = {"token": "2", "partition": 0, "cursor": "1-7", "consumer": "billing"}
        answer = httpx.put(f"{url}/progress", params=parameters)
        assert (answer.status_code, answer.json()) == (200, {"cursor": "1-7"})
        assert answer.headers["cache-control"] == "no-store"
        for error, change in (
            (BadRequest, {"consumer": ""}),
            (BadRequest, {"consumer": []}),
            (BadRequest, {"consumer": "billing "}),
            (BadRequest, {"partition": 7}),
            (TokenChanged, {"token": "9"}),
            (Diverged, {"cursor": "1-99"}),
        ):
            answer = httpx.put(f"{url}/progress", params={**parameters, **change})
            assert answer.status_code == error.status
            assert answer.json()["type"].rpartition("/")[2] == error.problem
        assert httpx.get(f"{url}/progress", params=parameters).status_code == 405
    assert heard(any_feed) == {("", "billing", 0): 7, ("", "Zoë & co", 1): 6}
    with served(any_shop, source(progress=None)) as url, client_of(url) as client:
        assert "progress" not in client.discover().extensions
        assert httpx.put(f"{url}/progress").status_code == NotFound.status


def test_one_principal_does_not_move_the_consumer_of_another(any_shop, any_feed):
    """A consumer belongs to the principal that registers it, in partitions that one may read."""
    with served(any_shop, authorize=bearer_tokens(PRINCIPALS)) as url:
        for name, position in (("ada", 5), ("bob", 19)):
            with client_of(url, name) as client:
                client.register_progress("billing", 0, any_feed.cursor_after(position))
        with client_of(url, "half") as client:
            with pytest.raises(BadRequest):
                client.register_progress("billing", 0, any_feed.cursor_after(3))
            client.register_progress("billing", 1, any_feed.cursor_after(20))
        assert httpx.put(f"{url}/progress").status_code == 401
    assert heard(any_feed) == {
        ("ada", "billing", 0): 5,
        ("bob", "billing", 0): 19,
        ("half", "billing", 1): 20,
    }
    assert "Consumer 'billing' of 'ada' keeps" in str(any_feed.plan_trim(below=18))


@pytest.mark.parametrize("is_async", [False, True])
def test_consumer_withdraws_its_progress_over_the_wire(any_shop, any_feed, is_async):
    """A reader withdraws its own consumer, in all partitions and as often as it likes; trimming
    then waits only for the same name of other readers.
    """
    with served(any_shop, authorize=bearer_tokens(PRINCIPALS)) as url:
        for name, position in (("ada", 5), ("bob", 19)):
            with client_of(url, name) as client:
                client.register_progress("billing", 0, any_feed.cursor_after(position))
                client.register_progress("billing", 1, any_feed.cursor_after(position + 1))
        session = {"headers": {"Authorization": f"Bearer {TOKENS['ada']}"}}
        call = async_call if is_async else sync_call
        assert call(url, "forget_progress", "billing", session=session) == 2
        assert heard(any_feed) == {("bob", "billing", 0): 19, ("bob", "billing", 1): 20}
        assert call(url, "forget_progress", "billing", session=session) == 0
        assert call(url, "forget_progress", "audit", session=session) == 0
        for name in ("two\nlines", "audit "):
            with pytest.raises(BadRequest):
                call(url, "forget_progress", name, session=session)
        assert httpx.delete(f"{url}/progress", params={"consumer": "billing"}).status_code == 401
        refused = httpx.get(f"{url}/progress", params={"consumer": "billing"})
        assert refused.status_code == 405
        assert set(refused.headers["allow"].split(", ")) == {"PUT", "DELETE"}
    assert any_feed.plan_trim(below=18).until == 17


def test_feed_without_progress_has_nothing_to_withdraw(shop):
    """A feed that keeps no progress does not announce the extension, and answers 404."""
    with served(shop, source(progress=None)) as url:
        assert httpx.delete(f"{url}/progress", params={"consumer": "billing"}).status_code == 404
        with pytest.raises(ConfigurationError, match="forget-progress"):
            sync_call(url, "forget_progress", "billing")


def test_names_of_a_reader_are_bounded(shop, monkeypatch):
    """Each principal registers a limited number of consumers; silent ones make room."""
    monkeypatch.setattr(progress, "MOST_NAMES", 3)
    feed = source().bind(shop)
    cursor = feed.read(0, FIRST, 3).cursor

    def register(name, principal="ada"):
        feed.register_progress(name, 0, cursor, principal=principal)

    feed.register_progress("a", 1, cursor, principal="ada")
    for name in ("a", "b", "c"):
        register(name)
    with pytest.raises(Forbidden, match="registered 3 consumers"):
        register("d")
    feed.register_progress("b", 1, cursor, principal="ada")
    register("c")
    register("d", "bob")
    assert feed.horizon().registered == 4
    with shop.begin() as connection:
        table = Progress().table
        connection.execute(update(table).where(table.c.consumer == "a").values(heard_at=0.0))
    register("d")
    assert {(one.consumer, one.principal) for one in feed.registered()} == {
        *(("b", "ada"), ("c", "ada"), ("d", "ada")),
        ("d", "bob"),
    }


def test_further_partition_needs_no_room(shop, monkeypatch):
    """The others are counted only for a name that is new, and not for each of its partitions."""
    feed = source().bind(shop)
    cursor = feed.read(0, FIRST, 3).cursor
    for name in ("a", "b"):
        feed.register_progress(name, 0, cursor)
    monkeypatch.setattr(progress, "MOST_NAMES", 1)
    feed.register_progress("a", 1, cursor)
    assert [one.partition for one in feed.registered()] == [0, 1, 0]
    with pytest.raises(Forbidden):
        feed.register_progress("c", 0, cursor)
