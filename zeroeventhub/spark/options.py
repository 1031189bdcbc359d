"""What a reader asks of a feed by Spark's options, and the refusal of what cannot be meant."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import httpx

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import LARGEST_PAGE, TypeFilter
from zeroeventhub.spark.credentials import Credentials
from zeroeventhub.spark.offsets import Offsets

__all__ = [
    "EARLIEST",
    "LATEST",
    "Boundary",
    "Moments",
    "Options",
    "origin_of",
    "read_options",
]

EARLIEST = "earliest"
LATEST = "latest"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Moments:
    """Name the places before the events of moments.

    Attributes:
        of_all: the moment for every partition that has none of its own.
        by_partition: moments of single partitions.
    """

    of_all: datetime | None
    by_partition: Mapping[int, datetime]

    def of(self, partition: int) -> datetime:
        """Return the moment for a partition.

        Raises:
            ConfigurationError: there is none.
        """
        moment = self.by_partition.get(partition, self.of_all)
        if moment is None:
            raise ConfigurationError(
                f"The options give a timestamp for some partitions and none for {partition}."
            )
        return moment


Boundary: TypeAlias = str | Offsets | Moments
"""Where to start or to end: EARLIEST, LATEST, offsets, or moments."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold what is asked of a feed.

    Attributes:
        url: the feed's address.
        starting: where to start; `earliest` for a batch and `latest` for a stream by default, as
            with Spark's source for Kafka.
        ending: where a batch ends; `latest` is the horizon when it is planned.
        partitions: the feed's partitions to read; None for all.
        min_partitions: how many tasks there are to be at least, as far as the feed can be split.
        max_offsets: how many events a micro-batch may have; None for all that there are.
        page_size: how many events to ask for at once.
        reads_segments: whether to read old events out of files, if the feed has them in such.
        segment_origins: where such files may be, beside the feed's own origin and signed URLs of
            object stores: origins such as `https://cdn.example`, or `file://`.
        attempts: how often to ask before an error is final that may pass by itself.
        types: the types of events to read; None for all.
        fails_on_loss: whether to stop where events are gone that were not read.
        with_headers: whether there is a column of headers (ZeroEventHub v1).
        v1_partitions: how many partitions a feed of ZeroEventHub v1 has.
        pushes_filters: whether Spark is asked for filters that the feed can apply.
        among: the partitions that a query is about, whether or not there are such; None for all.
        since: the moment before which a query is about no events; None for none.
        corrupt_record: the name of the column for events that do not fit the schema.
        credentials: where to find what the feed wants to be shown.
    """

    url: str
    starting: Boundary | None = None
    ending: Boundary = LATEST
    partitions: tuple[int, ...] | None = None
    min_partitions: int = 1
    max_offsets: int | None = None
    page_size: int = LARGEST_PAGE
    reads_segments: bool = True
    segment_origins: frozenset[str] = frozenset()
    attempts: int = 10
    types: TypeFilter | None = None
    fails_on_loss: bool = True
    with_headers: bool = False
    v1_partitions: int | None = None
    pushes_filters: bool = False
    among: frozenset[int] | None = None
    since: datetime | None = None
    corrupt_record: str = "_corrupt_record"
    credentials: Credentials = field(default_factory=Credentials)


_NAMES = (
    "path",
    "url",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "minPartitions",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "includeHeaders",
    "eventTypes",
    "skipEventTypes",
    "partitions",
    "pageSize",
    "readSegments",
    "segmentOrigins",
    "attempts",
    "v1Partitions",
    "filterPushdown",
    "columnNameOfCorruptRecord",
    *Credentials.OPTIONS,
)
_LOWER = {name.lower(): name for name in _NAMES}
_SECRETS = ("token", "password", "secret", "authorization", "header", "apikey", "credential")


def read_options(given: Mapping[str, str]) -> Options:
    """Read the options of a data source.

    Args:
        given: by name, whose case does not matter. Values are never repeated in an error.

    Raises:
        ConfigurationError: an option is unknown, missing, not of its form, or contradicts another.
    """
    found = {_known(name): value for name, value in given.items()}
    return Options(
        url=_url(found),
        starting=_boundary(found, "starting"),
        ending=_ending(found),
        partitions=_read(found, "partitions", _numbers),
        min_partitions=_read(found, "minPartitions", _positive) or 1,
        max_offsets=_read(found, "maxOffsetsPerTrigger", _positive),
        page_size=min(_read(found, "pageSize", _positive) or LARGEST_PAGE, LARGEST_PAGE),
        reads_segments=_flag(found, "readSegments", default=True),
        segment_origins=_read(found, "segmentOrigins", _origins) or frozenset(),
        attempts=_read(found, "attempts", _positive) or Options.attempts,
        types=_types(found),
        fails_on_loss=_flag(found, "failOnDataLoss", default=True),
        with_headers=_flag(found, "includeHeaders", default=False),
        v1_partitions=_read(found, "v1Partitions", _positive),
        pushes_filters=_flag(found, "filterPushdown", default=False),
        corrupt_record=found.get("columnNameOfCorruptRecord", Options.corrupt_record),
        credentials=Credentials.read(found),
    )


def _known(name: str) -> str:
    lower = name.lower()
    if lower in _LOWER:
        return _LOWER[lower]
    if any(secret in lower for secret in _SECRETS):
        raise ConfigurationError(
            "Spark shows options in plans and logs, so a secret is not one: give the name of an "
            "environment variable or of a file by bearerTokenEnv, bearerTokenFile, headersEnv or "
            "headersFile."
        )
    close = get_close_matches(lower, _LOWER, n=1)
    meant = f" Did you mean {_LOWER[close[0]]}?" if close else ""
    raise ConfigurationError(f"The source zeroeventhub has no option {name}.{meant}")


def _url(found: Mapping[str, str]) -> str:
    given = {found[name] for name in ("path", "url") if name in found}
    if len(given) != 1:
        raise ConfigurationError(
            'Say which feed to read, once: .load("https://shop.example/orders").'
        )
    (url,) = given
    try:
        userinfo = httpx.URL(url).userinfo
    except (httpx.InvalidURL, UnicodeError):
        raise ConfigurationError("What is to be loaded is not the URL of a feed.") from None
    if userinfo:
        raise ConfigurationError(
            "The feed's URL holds a password, which Spark would show in plans and logs: give a "
            "header by headersEnv or headersFile."
        )
    return url


def _boundary(found: Mapping[str, str], which: str) -> Boundary | None:
    names = [f"{which}Offsets", f"{which}Timestamp", f"{which}OffsetsByTimestamp"]
    if found.keys() >= {names[0], names[1]} or found.keys() >= {names[0], names[2]}:
        raise ConfigurationError(f"Give {names[0]} or a timestamp, not both.")
    moment = _read(found, names[1], _moment)
    moments = _read(found, names[2], _moments)
    if moment is not None or moments is not None:
        return Moments(moment, moments or {})
    offsets: Boundary | None = _read(found, names[0], _offsets)
    return offsets


def _ending(found: Mapping[str, str]) -> Boundary:
    ending = _boundary(found, "ending") or LATEST
    if ending == EARLIEST:
        raise ConfigurationError("Nothing can end at the earliest offset: give another one.")
    return ending


def _offsets(text: str) -> Boundary:
    if (lower := text.strip().lower()) in {EARLIEST, LATEST}:
        return lower
    return Offsets.of(json.loads(text))


def _moments(text: str) -> dict[int, datetime]:
    return {int(name): _moment(str(value)) for name, value in json.loads(text).items()}


def _moment(text: str) -> datetime:
    return _EPOCH + timedelta(milliseconds=int(text))


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def origin_of(url: str) -> str:
    """Return the scheme, host and port of a URL; `file://` of all files."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return "file://"
    host, port = parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return f"{parts.scheme}://{host}:{port}"


def _origins(text: str) -> frozenset[str]:
    urls = [url.strip() for url in text.split(",")]
    if not all(urlsplit(url).scheme in {"file", "http", "https"} for url in urls):
        raise ValueError
    return frozenset(map(origin_of, urls))


def _flag(found: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = found.get(name, str(default)).strip().lower()
    if text not in {"true", "false"}:
        raise ConfigurationError(f"The option {name} is true or false.")
    return text == "true"


def _types(found: Mapping[str, str]) -> TypeFilter | None:
    given = [name for name in ("eventTypes", "skipEventTypes") if name in found]
    if not given:
        return None
    if len(given) > 1:
        raise ConfigurationError("Give eventTypes or skipEventTypes, not both.")
    names = frozenset(filter(None, (name.strip() for name in found[given[0]].split(";"))))
    return TypeFilter(names, skip=given[0] == "skipEventTypes")


_FORMS: dict[str, str] = {
    "Offsets": 'earliest, latest, or JSON such as {"0":"…","1":"…"} with a cursor by partition',
    "Timestamp": "a number of milliseconds since 1970",
    "ByTimestamp": 'JSON such as {"0":1735689600000} with milliseconds since 1970 by partition',
    "partitions": "numbers between commas, such as 0,1",
    "segmentOrigins": "origins between commas, such as https://cdn.example,file://",
}


def _read(found: Mapping[str, str], name: str, form: Callable[[str], Any]) -> Any:
    """Read an option by its form; None where it is not given."""
    if name not in found:
        return None
    try:
        return form(found[name])
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        expected = [text for end, text in _FORMS.items() if name.endswith(end)]
        expected = expected[-1:] or ["a whole number, 1 or more"]
        raise ConfigurationError(f"The option {name} is {expected[0]}.") from None
