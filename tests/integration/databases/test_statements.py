"""Inserts that ignore existing rows, upserts, and the clock of each database."""

import time
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from harness.stores import call, claim, load, new_store

from zeroeventhub.databases.statements import insert_ignore, upsert

table = sa.Table(
    "counts",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("n", sa.Integer, nullable=False),
)

ZONES = {
    "postgresql": "SET TIME ZONE 'Pacific/Kiritimati'",
    "mysql": "SET time_zone = '+13:00'",
    "mariadb": "SET time_zone = '+13:00'",
}


def test_rows_that_are_there_stay_or_change(engine):
    """An insert counts the keys that were free and changes no other row; an upsert does."""
    table.create(engine)
    with engine.begin() as connection:
        assert insert_ignore(connection, table, []) == 0
        assert insert_ignore(connection, table, [{"id": 1, "n": 1}, {"id": 2, "n": 2}]) == 2
        assert insert_ignore(connection, table, [{"id": 2, "n": 9}, {"id": 3, "n": 3}]) == 1
        upsert(connection, table, {"id": 1, "n": 7}, {"n": table.c.n + 10})
        upsert(connection, table, {"id": 4, "n": 4}, {"n": table.c.n + 10})
        rows = connection.execute(sa.select(table).order_by(table.c.id)).all()
    assert [tuple(row) for row in rows] == [(1, 11), (2, 2), (3, 3), (4, 4)]


def test_clock_is_that_of_the_database_in_utc(engine, monkeypatch):
    """Leases and moments are in UTC by the database's clock, whatever zone connections have."""
    if zone := ZONES.get(engine.dialect.name):

        @sa.event.listens_for(engine, "connect")
        def move(connection, _):
            with connection.cursor() as cursor:
                cursor.execute(zone)
            connection.commit()

    store = new_store(engine)
    load(store, 0)
    claim(store, "one", [0], seconds=30)
    before, now = time.time(), datetime.now(UTC)
    for name in ("time", "monotonic"):
        function = getattr(time, name)
        monkeypatch.setattr(time, name, lambda function=function: function() + 86400)
    ending = claim(store, "two", [0]).elsewhere[0]
    assert 20 < ending - before < 40
    assert claim(store, "one", [0]).held == {0}
    (standing,) = call(store, store.standings)
    assert abs(now - standing.updated_at) < timedelta(seconds=10)
