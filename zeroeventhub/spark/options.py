"""The options of the source, and the credentials that they name."""

import json
import os
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import httpx

from zeroeventhub.bulk.offsets import Offsets
from zeroeventhub.bulk.options import (
    EARLIEST,
    LATEST,
    TIMEOUT,
    Boundary,
    Moments,
    ReadOptions,
    Words,
    origins_of,
)
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import LARGEST_PAGE, TypeFilter

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t -~]*")
"""The ASCII that the name and the value of a header may have (RFC 9110, 5.1 and 5.5)."""

_Http = TypeVar("_Http")

_SECRETS = ("bearerTokenEnv", "bearerTokenFile", "headersEnv", "headersFile")
_PLACES = (*_SECRETS, "tlsCaFile", "tlsCertificateFile", "tlsKeyFile", "tlsKeyPasswordEnv")


@dataclass(frozen=True)
class Credentials:
    """Read secrets from environment variables and files, on the machine that sends requests."""

    places: Mapping[str, str] = field(default_factory=dict)  # variables and files, by option

    def __post_init__(self) -> None:
        """Check the options against each other."""
        for one, other in (_SECRETS[:2], _SECRETS[2:]):
            if one in self.places and other in self.places:
                raise ConfigurationError(f"Give {one} or {other}, not both.")
        for one in ("tlsKeyFile", "tlsKeyPasswordEnv"):
            if one in self.places and "tlsCertificateFile" not in self.places:
                raise ConfigurationError(f"{one} needs the option tlsCertificateFile as well.")

    def headers(self) -> dict[str, str]:
        """Read the headers to send."""
        headers: dict[str, str] = {}
        if text := self._secret("headers"):
            headers |= _read_headers(text)
        if token := self._secret("bearerToken"):
            headers["Authorization"] = f"Bearer {token.strip()}"
        if not all(_NAME.fullmatch(name) and _VALUE.fullmatch(headers[name]) for name in headers):
            raise ConfigurationError(
                "A token or a header cannot be sent: the name of a header has letters, digits and "
                "hyphens, and its value is one line of ASCII."
            )
        return headers

    def open(
        self,
        headers: Mapping[str, str],
        http: Callable[..., _Http],
        *,
        with_certificate: bool = True,
    ) -> _Http:
        """Open an HTTP client that sends headers and may show the client's certificate."""
        authorities = self.places.get("tlsCaFile")
        certificate = self.places.get("tlsCertificateFile") if with_certificate else None
        if not authorities and not certificate:
            return http(headers=headers, verify=_public_tls(), timeout=TIMEOUT)
        try:
            context = (
                ssl.create_default_context(cafile=authorities)
                if authorities
                else httpx.create_ssl_context()
            )
            if certificate:
                # Without a password, OpenSSL would ask for one on the terminal.
                password: str | Callable[[], str] = self._variable("tlsKeyPasswordEnv") or str
                context.load_cert_chain(certificate, self.places.get("tlsKeyFile"), password)
        except (OSError, ValueError):
            raise ConfigurationError(
                "The files that tlsCaFile, tlsCertificateFile and tlsKeyFile name cannot be read "
                "on this machine as certificates and a key in PEM."
            ) from None
        return http(headers=headers, verify=context, timeout=TIMEOUT)

    def _secret(self, name: str) -> str | None:
        """Read a secret from its place; None if no option names a place."""
        if (file := self.places.get(f"{name}File")) is None:
            return self._variable(f"{name}Env")
        try:
            return Path(file).read_text("utf-8")
        except (OSError, ValueError):
            raise ConfigurationError(
                f"The file that {name}File names cannot be read on this machine: the driver and "
                "every executor need it."
            ) from None

    def _variable(self, option: str) -> str | None:
        if (name := self.places.get(option)) is None:
            return None
        if not (value := os.environ.get(name)):
            raise ConfigurationError(
                f"The environment variable that {option} names is not set on this machine: the "
                "driver and every executor need it."
            )
        return value


@cache
def _public_tls() -> ssl.SSLContext:
    """Return a context that trusts public authorities, made once because it reads them slowly."""
    return httpx.create_ssl_context()


def _read_headers(text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
        raise ConfigurationError(
            "headersEnv or headersFile has to name a JSON object of strings, such as "
            '{"X-Api-Key":"…"}.'
        )
    return found


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Options(ReadOptions):
    """The options of the source, in addition to those of every read.

    Without `starting`, a batch starts at `earliest` and a stream at `latest`, as with Spark's
    source for Kafka.

    Attributes:
        url: the feed's address.
        max_offsets_per_trigger: the most events of a micro-batch; None for no limit.
        include_headers: whether there is a column of headers (ZeroEventHub v1).
        v1_partitions: the number of partitions of a feed of ZeroEventHub v1.
        filter_pushdown: whether Spark passes the filters that the feed can apply.
        infer_schema: whether a read without a schema has the columns that the feed's schemas say.
        credentials: reads the secrets that requests are sent with.
    """

    url: str
    words: ClassVar[Words] = Words(
        start="startingOffsets",
        stop="endingOffsets",
        end="endingOffsets, endingTimestamp and endingOffsetsByTimestamp",
        segment_origins="segmentOrigins",
        read_segments="readSegments",
        corrupt_record="_corrupt_record STRING, or of the name that the option "
        "columnNameOfCorruptRecord gives,",
        struct="read a column data STRUCT<…>, or set the option inferSchema",
        on_data_loss="Set failOnDataLoss to false to go on without them, or start again with a new "
        "checkpoint.",
    )
    max_offsets_per_trigger: int | None = None
    include_headers: bool = False
    v1_partitions: int | None = None
    filter_pushdown: bool = False
    infer_schema: bool = False
    credentials: Credentials = field(default_factory=Credentials)


def _offsets(text: str) -> Boundary:
    if (lower := text.strip().lower()) in {EARLIEST, LATEST}:
        return lower
    return Offsets.of(json.loads(text))


def _moment(text: str) -> datetime:
    return _EPOCH + timedelta(milliseconds=int(text))


def _moments(text: str) -> dict[int, datetime]:
    return {int(name): _moment(str(value)) for name, value in json.loads(text).items()}


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _origins(text: str) -> frozenset[str]:
    return origins_of([url.strip() for url in text.split(",")])


def _types(text: str, *, skip: bool = False) -> TypeFilter:
    return TypeFilter(
        frozenset(filter(None, (name.strip() for name in text.split(";")))), skip=skip
    )


_OFFSETS = (
    _offsets,
    'earliest, latest, or JSON such as {"0":"…","1":"…"} with a cursor by partition',
)
_TIMESTAMP = (_moment, "a number of milliseconds since 1970")
_BY_TIMESTAMP = (
    _moments,
    'JSON such as {"0":1735689600000} with milliseconds since 1970 by partition',
)
_NUMBER = (_positive, "a whole number, 1 or more")
_FLAG = (lambda text: {"true": True, "false": False}[text.strip().lower()], "true or false")
_NAMES = "names between semicolons, such as paid;refunded"

_FORMS: dict[str, tuple[Callable[[str], Any], str]] = {
    "path": (str, ""),
    "url": (str, ""),
    "startingOffsets": _OFFSETS,
    "endingOffsets": _OFFSETS,
    "startingTimestamp": _TIMESTAMP,
    "endingTimestamp": _TIMESTAMP,
    "startingOffsetsByTimestamp": _BY_TIMESTAMP,
    "endingOffsetsByTimestamp": _BY_TIMESTAMP,
    "minPartitions": _NUMBER,
    "maxOffsetsPerTrigger": _NUMBER,
    "failOnDataLoss": _FLAG,
    "includeHeaders": _FLAG,
    "eventTypes": (_types, _NAMES),
    "skipEventTypes": (partial(_types, skip=True), _NAMES),
    "partitions": (
        lambda text: tuple(int(part) for part in text.split(",")),
        "numbers between commas, such as 0,1",
    ),
    "pageSize": (lambda text: min(_positive(text), LARGEST_PAGE), _NUMBER[1]),
    "readSegments": _FLAG,
    "segmentOrigins": (_origins, "origins between commas, such as https://cdn.example,file://"),
    "attempts": _NUMBER,
    "v1Partitions": _NUMBER,
    "filterPushdown": _FLAG,
    "columnNameOfCorruptRecord": (str, ""),
    "inferSchema": _FLAG,
    **dict.fromkeys(_PLACES, (str, "")),
}
"""How each option is read, and the form of its value."""

_LOWER = {name.lower(): name for name in _FORMS}
_SECRET_WORDS = ("token", "password", "secret", "authorization", "header", "apikey", "credential")


_FIELDS = Options.__dataclass_fields__.keys() - {"url"}


def _field(name: str) -> str:
    """Return the name of an option in snake case, as most fields of `Options` are named."""
    return re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", name)


def read_options(given: Mapping[str, str]) -> Options:
    """Read the options of a data source.

    Their names are in any case. No error repeats a value.

    Raises:
        ConfigurationError: an option is unknown, missing, malformed, or contradicts another.
    """
    found = {_option_name(name): value for name, value in given.items()}
    values = {name: _read(name, text) for name, text in found.items()}
    ending = _boundary(values, "ending") or LATEST
    if ending == EARLIEST:
        raise ConfigurationError("endingOffsets cannot be earliest: give latest, or JSON.")
    if "eventTypes" in found and "skipEventTypes" in found:
        raise ConfigurationError("Give eventTypes or skipEventTypes, not both.")
    types = [values[name] for name in ("eventTypes", "skipEventTypes") if name in values]
    return Options(
        url=_url(found),
        starting=_boundary(values, "starting"),
        ending=ending,
        types=types[0] if types else None,
        credentials=Credentials({name: found[name] for name in _PLACES if name in found}),
        **{field: value for name, value in values.items() if (field := _field(name)) in _FIELDS},
    )


def _option_name(name: str) -> str:
    lower = name.lower()
    if lower in _LOWER:
        return _LOWER[lower]
    if any(word in lower for word in _SECRET_WORDS):
        raise ConfigurationError(
            "Spark shows options in plans and logs, so no option takes a secret: name an "
            "environment variable by bearerTokenEnv or headersEnv, or a file by bearerTokenFile "
            "or headersFile."
        )
    close = get_close_matches(lower, _LOWER, n=1)
    meant = f" Did you mean {_LOWER[close[0]]}?" if close else ""
    raise ConfigurationError(f"The source zeroeventhub has no option {name}.{meant}")


def _read(name: str, text: str) -> Any:
    read, form = _FORMS[name]
    try:
        return read(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"The option {name} has to be {form}. {error}") from None
    except (LookupError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise ConfigurationError(f"The option {name} has to be {form}.") from None


def _url(found: Mapping[str, str]) -> str:
    given = {found[name] for name in ("path", "url") if name in found}
    if len(given) != 1:
        raise ConfigurationError(
            'Give the URL of the feed once: .load("https://shop.example/orders").'
        )
    (url,) = given
    try:
        userinfo = httpx.URL(url).userinfo
    except (httpx.InvalidURL, UnicodeError):
        raise ConfigurationError("The text to load is not the URL of a feed.") from None
    if userinfo:
        raise ConfigurationError(
            "The feed's URL has a password in it, which Spark would show in plans and logs: name a "
            "header by headersEnv or headersFile instead."
        )
    return url


def _boundary(values: Mapping[str, Any], which: str) -> Boundary | None:
    offsets = f"{which}Offsets"
    moments = [name for name in (f"{which}Timestamp", f"{offsets}ByTimestamp") if name in values]
    if offsets in values and moments:
        raise ConfigurationError(f"Give {offsets} or {moments[0]}, not both.")
    if moments:
        by_partition = values.get(f"{offsets}ByTimestamp", {})
        return Moments(values.get(f"{which}Timestamp"), by_partition)
    found: Boundary | None = values.get(offsets)
    return found
