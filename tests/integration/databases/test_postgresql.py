"""What PostgreSQL alone does: how it plans for a feed, and what its sessions are set to."""

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from harness.engines import connected
from harness.published import install
from harness.shop import fill, orders, place, write
from harness.statements import add, scalars
from harness.tables import event_table

from zeroeventhub import FIRST, Retention, TableFeed
from zeroeventhub.archive import Archive
from zeroeventhub.publisher import horizon_monitor


def test_feed_plans_so_on_postgresql_and_its_host_does_not(postgresql):
    """What a feed reads is planned without sorting, and its host plans as it did before."""
    orders.create(postgresql)
    seen = []

    @sa.event.listens_for(postgresql, "before_cursor_execute")
    def ask(connection, cursor, statement, *_):
        if "orders.data" in statement:
            with connection.connection.cursor() as other:
                names = ("enable_sort", "enable_seqscan")
                seen.extend(other.execute(f"SHOW {name}").fetchone()[0] for name in names)

    write(postgresql, 3)
    TableFeed(orders, data="data").bind(postgresql).read(0, FIRST, 3)
    assert {*seen} == {"off"}
    for name in ("enable_sort", "enable_seqscan"):
        assert scalars(postgresql, f"SHOW {name}") == ["on"]


STYLES = {
    "extra_float_digits": (sa.Double(), 0.1 + 0.2, 0.1 + 0.2),
    "datestyle": (
        sa.ARRAY(sa.DateTime(timezone=True)),
        [datetime(2013, 1, 1, 10, tzinfo=UTC)],
        ["2013-01-01T10:00:00Z"],
    ),
    "intervalstyle": (sa.Interval(), timedelta(days=1, hours=1), "P1DT3600S"),
}


of_style = pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("extra_float_digits", "0"),
        ("datestyle", "SQL"),
        ("datestyle", "German"),
        ("intervalstyle", "iso_8601"),
        ("intervalstyle", "postgres_verbose"),
    ],
)


@of_style
def test_events_do_not_depend_on_the_style_of_a_session(postgresql, setting, value):
    """What a host's sessions print otherwise is published with all digits, and as elsewhere."""
    kind, written, shown = STYLES[setting]
    table = event_table("log", at=kind)
    table.metadata.create_all(postgresql)
    add(postgresql, table, [{"at": written}])
    with connected(postgresql.url, options=f"-c {setting}={value}") as host:
        (event,) = TableFeed(table, data=["at"]).bind(host).read(0, FIRST, 9).events
        assert event.data == {"at": shown}
        assert scalars(host, f"SHOW {setting}")[0].startswith(value)


@of_style
def test_trims_and_restores_do_not_depend_on_it(postgresql, tmp_path, setting, value):
    """Events are deleted, and written back, as they were published; a cursor between stays good."""
    kind, written, shown = STYLES[setting]
    table = event_table("log", at=kind)
    table.metadata.create_all(postgresql)
    add(postgresql, table, [{"at": written}] * 3)
    options = {"retention": Retention(), "archive": Archive(tmp_path)}
    source = TableFeed(table, data=["at"], **options)
    install(source, postgresql)
    with connected(postgresql.url, options=f"-c {setting}={value}") as host:
        feed = source.bind(host)
        cursor = feed.read(0, FIRST, 2).cursor
        feed.seal()
        assert feed.trim(feed.plan_trim(below=3)) == 2
        assert [event.data for event in feed.read(0, cursor, 9).events] == [{"at": shown}]
        assert feed.restore().written == 2
        assert scalars(host, f"SHOW {setting}")[0].startswith(value)


def test_open_writers_are_named_in_any_style(postgresql, monkeypatch, caplog):
    """A feed says who holds it back, also where a host's sessions print intervals otherwise."""
    monkeypatch.setattr(horizon_monitor, "TOO_LATE", 0.0)
    fill(postgresql, 3)
    with connected(postgresql.url, options="-c intervalstyle=iso_8601") as host:
        source = TableFeed(orders, data="data")
        feed = source.bind(host)
        assert feed.head() == 3
        with postgresql.begin() as writer:
            place(writer, 1)
            while not caplog.text:
                feed.head()
            with host.connect() as connection:
                (blocker,) = source.ordering("postgresql").blockers(connection)
            assert 0 <= blocker.query_age.total_seconds() <= blocker.age.total_seconds() < 60
    assert f"Its oldest writer: pid {blocker.pid} of " in caplog.text


@pytest.mark.parametrize("ordering", ["observed", "sequenced"])
def test_driver_may_prepare_every_statement(postgresql, ordering):
    """A feed reads, and gives positions, also where psycopg's prepare_threshold is 0."""
    feed = TableFeed(orders, data="data", ordering=ordering)
    with postgresql.begin() as connection:
        orders.create(connection)
        feed.install(connection)
    fill(postgresql, 3)
    with connected(postgresql.url, prepare_threshold=0) as host:
        bound = feed.bind(host)
        for _ in range(3):
            assert len(bound.read(0, FIRST, 9).events) == 3
            assert bound.head() == 3
