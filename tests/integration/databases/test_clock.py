"""The clock of the database, which is one for all processes of a consumer."""

import time
from datetime import UTC, datetime, timedelta

from harness.stores import call, claim, load, new_store
from sqlalchemy import event

ZONES = {
    "postgresql": "SET TIME ZONE 'Pacific/Kiritimati'",
    "mysql": "SET time_zone = '+13:00'",
    "mariadb": "SET time_zone = '+13:00'",
}


def test_clock_is_that_of_the_database_in_utc(engine, monkeypatch):
    """Leases and moments are in UTC by the database's clock, whatever zone connections have."""
    if zone := ZONES.get(engine.dialect.name):

        @event.listens_for(engine, "connect")
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
