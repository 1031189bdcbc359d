"""What is measured of a publisher."""

from functools import partial
from typing import Final

from zeroeventhub.telemetry.metric import Kind, Metric

__all__ = [
    "ANSWER",
    "BLOCKER_AGE",
    "BLOCKER_QUERY_AGE",
    "BYTES",
    "EVENTS",
    "HORIZON_AGE",
    "HORIZON_METRICS",
    "LONGEST_EVENT",
    "PUBLISHER_METRICS",
    "REGISTERED",
    "REQUESTS",
    "UNPUBLISHED",
    "WAITERS",
]

_metric = partial(Metric, side="publisher")
_ROUTE = ("feed", "route")
_BLOCKER = ("feed", "pid")

REQUESTS: Final = _metric(
    "requests",
    Kind.COUNTER,
    "{request}",
    "Requests that were answered.",
    ("feed", "route", "status"),
)
EVENTS: Final = _metric(
    "events", Kind.COUNTER, "{event}", "Events in answers; not those of streams.", _ROUTE
)
BYTES: Final = _metric(
    "sent", Kind.COUNTER, "By", "Bytes in the bodies of answers; not those of streams.", _ROUTE
)
ANSWER: Final = _metric(
    "answer.duration",
    Kind.HISTOGRAM,
    "s",
    "How long the feed took for an answer, without its waiting at the head.",
    _ROUTE,
)
WAITERS: Final = _metric(
    "waiters", Kind.GAUGE, "{request}", "Requests that wait at the head now.", ("feed",)
)
HORIZON_AGE: Final = _metric(
    "horizon.age",
    Kind.GAUGE,
    "s",
    "How long the oldest position that is drawn and not settled has been seen so.",
    ("feed",),
)
BLOCKER_AGE: Final = _metric(
    "blocker.age",
    Kind.GAUGE,
    "s",
    "How long the oldest writer that holds the horizon back has been open.",
    _BLOCKER,
)
BLOCKER_QUERY_AGE: Final = _metric(
    "blocker.query_age",
    Kind.GAUGE,
    "s",
    "How long ago the last statement of this writer began.",
    _BLOCKER,
)

UNPUBLISHED: Final = _metric(
    "unpublished",
    Kind.GAUGE,
    "1",
    "1 while the table has events that are in no partition of the feed, otherwise 0.",
    ("feed",),
)
LONGEST_EVENT: Final = _metric(
    "longest_event",
    Kind.GAUGE,
    "By",
    "How long the longest event is that this process has read; some consumers take 65,535 bytes.",
    ("feed",),
)
REGISTERED: Final = _metric(
    "registered",
    Kind.GAUGE,
    "{consumer}",
    "Consumers that say how far they have come, for which trimming waits.",
    ("feed",),
)

PUBLISHER_METRICS: Final = (REQUESTS, EVENTS, BYTES, ANSWER, WAITERS)
"""All that an observer measures."""

HORIZON_METRICS: Final = (
    HORIZON_AGE,
    BLOCKER_AGE,
    BLOCKER_QUERY_AGE,
    UNPUBLISHED,
    LONGEST_EVENT,
    REGISTERED,
)
"""What is looked up when somebody wants to know it."""
