"""Moments and durations, as people write and read them."""

import re
from datetime import UTC, datetime, time, timedelta, tzinfo

from zeroeventhub.errors import ConfigurationError

FORMS = "2026-01-31T12:00:00Z, 2026-01-31, 14:30, yesterday, 'yesterday 14:30', 2h or '3 days ago'"
"""How people write a moment."""

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

_AGO = re.compile(r"([0-9]{1,6}) ?(?:([smhdw])|(second|minute|hour|day|week)s?)(?: ago)?", re.ASCII)
_DAYS = {"today": 0, "yesterday": 1}
_SPANS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def moment(text: str, zone: tzinfo | None = None) -> datetime:
    """Read a moment, in one of the FORMS.

    Args:
        text: what somebody wrote.
        zone: the time zone of what is written without one; None for that of this machine.

    Raises:
        ValueError: the text is no moment.
        OverflowError: the moment is before or after all that there are.
    """
    now = datetime.now(zone)
    if ago := _AGO.fullmatch(text):
        return now.astimezone(zone) - timedelta(**{UNITS[ago[2] or ago[3][0]]: int(ago[1])})
    day, _, hour = text.partition(" ")
    if day in _DAYS:
        date = now.date() - timedelta(days=_DAYS[day])
        found = datetime.combine(date, time.fromisoformat(hour or "00:00"))
    elif ":" in text[:3]:
        found = datetime.combine(now.date(), time.fromisoformat(text))
    else:
        found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=zone).astimezone(zone)


def expect_age(age: object) -> None:
    """Raise ConfigurationError if an age is no timedelta."""
    if not isinstance(age, timedelta):
        raise ConfigurationError(f"An age is a timedelta, such as timedelta(days=30), not {age!r}.")


def ago(age: timedelta) -> datetime:
    """Return the moment that was so long ago; raise ConfigurationError if there is none."""
    expect_age(age)
    try:
        return datetime.now(UTC) - age
    except OverflowError:
        raise ConfigurationError(
            f"{age.days:,} days ago is not a moment in the years 1 to 9999."
        ) from None


def duration(seconds: float | None) -> str:
    """Write seconds in the largest unit that fits, such as 2.5 h; a dash if they are not known."""
    if seconds is None:
        return "—"
    for length, unit in _SPANS:
        if seconds >= length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.1f} s"
