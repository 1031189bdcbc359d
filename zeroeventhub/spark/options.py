"""The options of the source, checked, and the credentials that they name."""

import json
import os
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeAlias
from urllib.parse import urlsplit

import httpx

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import LARGEST_PAGE, TypeFilter
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

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t -~]*")
"""What a header may have (RFC 9110, 5.1 and 5.5), without what is not ASCII."""

_PATIENCE = httpx.Timeout(30.0, connect=10.0)


@dataclass(frozen=True)
class Credentials:
    """Name the places of secrets.

    Attributes:
        token_variable: the environment variable of a bearer token.
        token_file: the file of one; it is read again when the feed refuses it.
        headers_variable: the environment variable of headers, as a JSON object.
        headers_file: the file of headers.
        ca_file: the file of certificates to trust, in place of the system's.
        certificate_file: the file of the client's certificate.
        key_file: the file of its key, where that is another one.
        key_password_variable: the environment variable of the key's password.
    """

    OPTIONS: ClassVar[tuple[str, ...]] = (
        "bearerTokenEnv",
        "bearerTokenFile",
        "headersEnv",
        "headersFile",
        "tlsCaFile",
        "tlsCertificateFile",
        "tlsKeyFile",
        "tlsKeyPasswordEnv",
    )

    token_variable: str | None = None
    token_file: str | None = None
    headers_variable: str | None = None
    headers_file: str | None = None
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password_variable: str | None = None

    @classmethod
    def read(cls, options: Mapping[str, str]) -> "Credentials":
        """Read what options name.

        Raises:
            ConfigurationError: two of them name the same, or one needs another.
        """
        for one, other in (("bearerTokenEnv", "bearerTokenFile"), ("headersEnv", "headersFile")):
            if one in options and other in options:
                raise ConfigurationError(f"Give {one} or {other}, not both.")
        for one in ("tlsKeyFile", "tlsKeyPasswordEnv"):
            if one in options and "tlsCertificateFile" not in options:
                raise ConfigurationError(f"{one} is for the key of a tlsCertificateFile: give it.")
        return cls(*(options.get(name) for name in cls.OPTIONS))

    def headers(self) -> dict[str, str]:
        """Read the headers to send, on the machine that sends them.

        Raises:
            ConfigurationError: there is nothing at a place, or nothing that can be sent.
        """
        headers: dict[str, str] = {}
        if text := _found(self.headers_variable, self.headers_file, "headers"):
            headers |= _read_headers(text)
        if token := _found(self.token_variable, self.token_file, "bearerToken"):
            headers["Authorization"] = f"Bearer {token.strip()}"
        if not all(_NAME.fullmatch(name) and _VALUE.fullmatch(headers[name]) for name in headers):
            raise ConfigurationError(
                "A token or a header cannot be sent: HTTP takes names of letters, digits and "
                "hyphens, and values of one line of ASCII."
            )
        return headers

    def open(self, headers: Mapping[str, str], *, with_certificate: bool = True) -> httpx.Client:
        """Open an HTTP client, which is the caller's to close.

        Args:
            headers: what `headers` gave.
            with_certificate: whether to show the client's certificate.

        Raises:
            ConfigurationError: a certificate or a key cannot be read.
        """
        tls = self._tls(with_certificate=with_certificate) or _public_tls()
        return httpx.Client(headers=headers, verify=tls, timeout=_PATIENCE)

    def _tls(self, *, with_certificate: bool) -> ssl.SSLContext | None:
        if not (self.ca_file or (self.certificate_file and with_certificate)):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.certificate_file and with_certificate:
                password = _variable(self.key_password_variable, "tlsKeyPasswordEnv")
                # Without a password, OpenSSL would ask for it on the terminal.
                secret: str | Callable[[], str] = password or (lambda: "")
                context.load_cert_chain(self.certificate_file, self.key_file, secret)
        except (OSError, ValueError):
            raise ConfigurationError(
                "The files that tlsCaFile, tlsCertificateFile and tlsKeyFile name cannot be read "
                "on this machine as certificates and a key in PEM."
            ) from None
        return context


@cache
def _public_tls() -> ssl.SSLContext:
    """Return what trusts public authorities, made once: reading them takes a while."""
    return httpx.create_ssl_context()


def _found(variable: str | None, file: str | None, option: str) -> str | None:
    """Read a secret from its place; None where there is no place."""
    if file is None:
        return _variable(variable, f"{option}Env")
    try:
        return Path(file).read_text("utf-8")
    except (OSError, ValueError):
        raise ConfigurationError(
            f"The file that {option}File names cannot be read on this machine: it has to be there "
            "on the driver and on every executor."
        ) from None


def _variable(name: str | None, option: str) -> str | None:
    if name is None:
        return None
    if not (value := os.environ.get(name)):
        raise ConfigurationError(
            f"The environment variable that {option} names is not set on this machine: it has to "
            "be there on the driver and on every executor."
        )
    return value


def _read_headers(text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
        raise ConfigurationError(
            'Headers are a JSON object of strings, such as {"X-Api-Key":"…"}, wherever headersEnv '
            "or headersFile say."
        )
    return found


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
        segment_origins: where such files may be, in addition to the feed's origin and signed URLs
            of object stores: origins such as `https://cdn.example`, or `file://`.
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
