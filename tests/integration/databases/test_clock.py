"""The clock of the database, which is one for all processes of a consumer."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from harness.stores import call, claim, empty_store, load, new_store
from sqlalchemy import event

ZONES = {
    "postgresql": "SET TIME ZONE 'Pacific/Kiritimati'",
    "mysql": "SET time_zone = '+13:00'",
    "mariadb": "SET time_zone = '+13:00'",
}


@pytest.fixture
def abroad(engine):
    """A store whose connections are in a zone far from UTC."""
    if zone := ZONES.get(engine.dialect.name):

        @event.listens_for(engine, "connect")
        def move(connection, _):
            with connection.cursor() as cursor:
                cursor.execute(zone)
            connection.commit()

    return new_store(engine)


def test_clock_takes_no_notice_of_time_zones(abroad):
    """A lease runs out when UTC says so, and a cursor's moment is in UTC, in any zone."""
    load(abroad, 0)
    claim(abroad, "one", [0], seconds=30)
    ending = claim(abroad, "two", [0]).elsewhere[0]
    assert 20 < ending - time.time() < 40
    (standing,) = call(abroad, abroad.standings)
    assert abs(datetime.now(UTC) - standing.updated_at) < timedelta(seconds=10)


def test_clock_of_a_process_does_not_count(shop_engine, monkeypatch):
    """A process whose own clock is a day off sees the same."""
    store = empty_store(shop_engine)
    claim(store, "one", (0,))
    before = time.time()
    for name in ("time", "monotonic"):
        function = getattr(time, name)
        monkeypatch.setattr(time, name, lambda function=function: function() + 86400)
    elsewhere = claim(store, "two", (0,)).elsewhere
    assert 20 < elsewhere[0] - before < 40
    assert claim(store, "one", (0,)).held == {0}
