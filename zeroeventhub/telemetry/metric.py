"""What is measured, whoever keeps the measurements; here, what is measured of a consumer."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

__all__ = [
    "APPLY",
    "BACKOFF",
    "DEAD_LETTERS",
    "DUPLICATES",
    "EVENTS",
    "FAILURES",
    "FENCED",
    "FETCH",
    "HALTED",
    "HELD",
    "LAG_EVENTS",
    "LAG_TIME",
    "METRICS",
    "OPEN_LETTERS",
    "PAGES",
    "RETRIES",
    "SECONDS",
    "Kind",
    "Metric",
]

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Where the buckets of a histogram of seconds end; a feed may wait for 30 before it answers."""


class Kind(Enum):
    """Say how measurements add up: to a sum that grows, to the last one, or to a distribution."""

    COUNTER = auto()
    GAUGE = auto()
    HISTOGRAM = auto()


@dataclass(frozen=True)
class Metric:
    """Describe a metric.

    Attributes:
        name: what is measured, in words with dots between.
        kind: how measurements add up.
        unit: as UCUM has it.
        description: one sentence.
        labels: what tells its series apart.
        side: whose metric it is.
    """

    name: str
    kind: Kind
    unit: str
    description: str
    labels: tuple[str, ...] = ("consumer", "partition")
    side: str = "consumer"


_FAILING = ("consumer", "partition", "error")

EVENTS: Final = Metric("events", Kind.COUNTER, "{event}", "Events that were applied and committed.")
PAGES: Final = Metric("pages", Kind.COUNTER, "{page}", "Pages that were applied and committed.")
FETCH: Final = Metric(
    "fetch.duration", Kind.HISTOGRAM, "s", "How long the feed took for a page, with its waiting."
)
APPLY: Final = Metric(
    "apply.duration", Kind.HISTOGRAM, "s", "How long the transaction of a page took."
)
FAILURES: Final = Metric(
    "failures", Kind.COUNTER, "{failure}", "Tries to apply a page that raised.", _FAILING
)
DEAD_LETTERS: Final = Metric(
    "dead_letters",
    Kind.COUNTER,
    "{event}",
    "Events set aside: failed, or held back behind one of their key.",
    ("consumer", "partition", "state"),
)
OPEN_LETTERS: Final = Metric(
    "dead_letters.open",
    Kind.GAUGE,
    "{event}",
    "Dead letters that are neither settled nor discarded.",
)
DUPLICATES: Final = Metric(
    "duplicates", Kind.COUNTER, "{event}", "Events that the inbox dropped, because they came twice."
)
FENCED: Final = Metric(
    "fenced", Kind.COUNTER, "{commit}", "Commits refused because another process has gone on."
)
RETRIES: Final = Metric(
    "retries", Kind.COUNTER, "{retry}", "Pauses before something is tried again.", _FAILING
)
BACKOFF: Final = Metric("backoff", Kind.COUNTER, "s", "Time spent in those pauses.", _FAILING)
HELD: Final = Metric(
    "partitions_held",
    Kind.GAUGE,
    "{partition}",
    "Partitions that this process holds by lease.",
    ("consumer",),
)
HALTED: Final = Metric(
    "partition_halted", Kind.GAUGE, "1", "1 for a partition that stands still, 0 once it goes on."
)
LAG_EVENTS: Final = Metric(
    "lag.events", Kind.GAUGE, "{event}", "Events behind the consumer's cursor; at least so many."
)
LAG_TIME: Final = Metric(
    "lag.time", Kind.GAUGE, "s", "How long ago the first of these events happened."
)

METRICS: Final = (
    *(EVENTS, PAGES, FETCH, APPLY, FAILURES, DEAD_LETTERS, DUPLICATES),
    *(FENCED, RETRIES, BACKOFF, HELD, HALTED),
)
"""All that an observer measures; a consumer's lag is looked up when somebody wants to know it."""
