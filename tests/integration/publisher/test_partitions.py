"""Events in partitions that a feed does not have stop no other reader, and are not lost."""

import logging
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from harness.command_line import invoke
from harness.published import TWO, published
from harness.readers import get, mounted
from harness.shop import orders
from harness.statements import add, execute, scalars
from sqlalchemy import update
from sqlalchemy.exc import DBAPIError

from zeroeventhub import FIRST, TableFeed
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher import checks
from zeroeventhub.publisher.retention import Compaction, Retention

STRAY = "There is an event in partition 7, but the feed's partitions are 0 to 1"


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Let a feed look at its table whenever it is read."""
    monkeypatch.setattr(checks, "CHECK_INTERVAL", -1.0)


def write(engine, *partitions):
    """Append an event to each of some partitions."""
    add(engine, orders, [{"part": one, "data": {}} for one in partitions])


@pytest.mark.parametrize("ordering", [None, "sequenced"], ids=["by default", "sequenced"])
def test_event_of_no_partition_stops_no_other(engine, ordering, caplog):
    """Other partitions are read on, and log, horizon and check tell of the event until it moves."""
    feed = published(engine, ordering=ordering, **TWO)
    write(engine, 0, 1, 7, 0)
    feed.head()
    assert [len(feed.read(one, FIRST, 9).events) for one in (0, 1)] == [2, 1]
    records = {one.getMessage() for one in caplog.records if one.levelno == logging.ERROR}
    (finding,) = [one for one in feed.check() if one.subject == "partitions"]
    sentence = feed.horizon().unpublished
    assert records == {sentence} == {finding.sentence}
    assert sentence.startswith(STRAY)
    assert finding.level == "error"
    execute(engine, update(orders).where(orders.c.part == 7).values(part=1))
    if ordering is None:
        assert feed.horizon().unpublished is None
        assert len(feed.read(1, FIRST, 9).events) == 2


@pytest.mark.parametrize("way", ["trim", "compact"])
def test_events_of_no_partition_are_not_deleted(sqlite, way):
    """What no reader can have seen is neither trimmed nor compacted."""
    kept = {"retention": Retention(), "compaction": Compaction(), "key": "customer"}
    feed = published(sqlite, **TWO, **kept)
    write(sqlite, 0, 7, 1, 1)
    calls = {"trim": lambda: feed.plan_trim(below=3), "compact": feed.compact}
    with pytest.raises(ConfigurationError, match=STRAY):
        calls[way]()
    assert scalars(sqlite, "SELECT count(*) FROM orders") == [4]


def test_feed_grows_with_its_table(engine):
    """A feed without a number of partitions has those of its table, and then another token."""
    with mounted(published(engine, partition="part")) as url:
        write(engine, 0, 1)
        assert [one["id"] for one in httpx.get(url).json()["partitions"]] == ["0", "1"]
        page = {"partition": 0, "cursor": FIRST}
        assert get(url, token="2", **page).status_code == 200
        write(engine, 3, -1, 9_000)
        assert get(url, token="2", **page).status_code == 409
        assert get(url, token="4", partition=3, cursor=FIRST).text.count("\n") == 2


def test_trimmed_partition_stays(sqlite):
    """A partition whose events were all trimmed is there for a process that starts later."""
    options = {"partition": "part", "retention": Retention()}
    feed = published(sqlite, **options)
    write(sqlite, 0, 2, 0)
    feed.trim(feed.plan_trim(below=2))
    assert len(TableFeed(orders, data="data", **options).bind(sqlite).info().partitions) == 3


@pytest.mark.parametrize("ordering", [None, "sequenced"], ids=["by default", "sequenced"])
def test_compacted_partition_stays(engine, ordering):
    """A partition whose keys are all no more is there for a process that starts later."""
    gone = Compaction(tombstone=orders.c.kind == "gone", keep_tombstones=timedelta())
    options = {"partition": "part", "key": "customer", "time": "placed", "ordering": ordering}
    options |= {"retention": Retention(), "compaction": gone}
    feed = published(engine, **options)
    old = {"placed": datetime.now(UTC) - timedelta(hours=1), "data": {}}
    rows = [(0, "ada", "gone"), (2, "eve", "gone"), (2, "bob", "placed"), (2, "bob", "gone")]
    for part, customer, kind in [*rows, (0, "ada", "placed")]:
        add(engine, orders, [{"part": part, "customer": customer, "kind": kind} | old])
    feed.head()
    assert feed.compact() == 3
    assert len(TableFeed(orders, data="data", **options).bind(engine).info().partitions) == 3


def test_constraint_keeps_writers_in_their_partitions(postgresql, postgresql_url):
    """`ddl` prints a constraint, by which the database refuses the event at once."""
    published(postgresql)
    table = ("--database", postgresql_url, "--table", "orders", "--partition", "part")
    execute(postgresql, _statement(invoke("ddl", *table, "--partitions", 2)))
    write(postgresql, 1)
    with pytest.raises(DBAPIError, match="orders_part"):
        write(postgresql, 2)
    with postgresql.begin() as connection:
        undone = invoke("ddl", *table, "--partitions", 2, "--uninstall")
        connection.exec_driver_sql(_statement(undone))
    write(postgresql, 2)
    shown = invoke("horizon", *table, "--partitions", 2).stdout
    assert "There is an event in partition 2" in shown


def _statement(result):
    """Return what `ddl` prints, without its own transaction."""
    return result.stdout.replace("BEGIN;", "").replace("COMMIT;", "")
