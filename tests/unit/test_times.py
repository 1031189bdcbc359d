"""People write moments as they speak of them, and read durations in units that fit."""

import time
from datetime import datetime, timedelta, timezone

import pytest

from zeroeventhub.times import duration, moment


@pytest.fixture
def in_paris(monkeypatch):
    """Be in a time zone of its own, with a summer time."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00+00:00"),
        ("2026-01-31T12:00:00-05:00", "2026-01-31T12:00:00-05:00"),
        ("2026-01-31T12:00:00", "2026-01-31T12:00:00+01:00"),
        ("2026-07-31 12:00", "2026-07-31T12:00:00+02:00"),
        ("2026-01-31", "2026-01-31T00:00:00+01:00"),
    ],
)
def test_date_and_time_are_of_this_machine_without_a_zone(in_paris, text, expected):
    """A zone that is written counts; otherwise a date and a time are those of the machine."""
    assert moment(text).isoformat() == expected


def test_zone_may_be_that_of_who_writes():
    """What is written without a zone is of the one that is given, also a day's beginning."""
    east = timezone(timedelta(hours=13))
    assert moment("2026-01-31T12:00:00", east).isoformat() == "2026-01-31T12:00:00+13:00"
    assert moment("2026-01-31T12:00:00Z", east).isoformat() == "2026-01-31T12:00:00+00:00"
    today = moment("today", east)
    assert (today.utcoffset(), today.hour) == (timedelta(hours=13), 0)
    assert timedelta() <= datetime.now(east) - today < timedelta(days=1, minutes=1)
    assert moment("2h", east) <= datetime.now(east) - timedelta(hours=2)


@pytest.mark.parametrize(
    ("text", "days", "hour"),
    [
        ("today", 0, "00:00"),
        ("14:30", 0, "14:30"),
        ("yesterday", 1, "00:00"),
        ("yesterday 14:30:15", 1, "14:30:15"),
    ],
)
def test_days_are_named(in_paris, text, days, hour):
    """Today and yesterday begin at midnight, and a time alone is of today."""
    while True:
        today = datetime.now().astimezone().date()
        found = moment(text)
        if today == datetime.now().astimezone().date():  # midnight has not passed meanwhile
            break
    assert found.date() == today - timedelta(days=days)
    assert f"{found:%H:%M:%S}".startswith(hour)
    assert found.utcoffset() is not None


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("45s", timedelta(seconds=45)),
        ("90m", timedelta(minutes=90)),
        ("2h", timedelta(hours=2)),
        ("2h ago", timedelta(hours=2)),
        ("3 days ago", timedelta(days=3)),
        ("1 week", timedelta(weeks=1)),
        ("10 minutes ago", timedelta(minutes=10)),
    ],
)
def test_age_is_before_now(text, age):
    """An age counts back from now."""
    before = datetime.now().astimezone()
    assert before - age <= moment(text) <= datetime.now().astimezone() - age


@pytest.mark.parametrize(
    "text", ["", "noon", "tomorrow", "yesterday noon", "2026-13-01", "25:00", "3", "999999w", "٣h"]
)
def test_what_is_no_moment_is_refused(text):
    """Anything else is refused."""
    with pytest.raises((ValueError, OverflowError)):
        moment(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *[(None, "—"), (0, "0.0 s"), (59.94, "59.9 s"), (60, "1.0 min"), (5400, "1.5 h")],
        *[(86_400, "1.0 d"), (86_400_000, "1,000.0 d")],
    ],
)
def test_duration_has_the_largest_unit_that_fits(seconds, text):
    """A duration is in the largest unit of which it has at least one."""
    assert duration(seconds) == text
