"""Read refusals: the problem document of an answer, and its Retry-After."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import msgspec

from zeroeventhub import errors
from zeroeventhub.errors import printable

_Refusal = errors.FeedError | errors.IdReused | errors.Conflict

_STATUSES: dict[int, type[errors.FeedError]] = {
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.NotFound,
    409: errors.TokenChanged,
    410: errors.Gone,
    413: errors.TooLarge,
    415: errors.UnsupportedMediaType,
}
_REFUSALS: list[type[errors.FeedError | errors.IdReused]] = [
    *_STATUSES.values(),
    *(errors.BadRequest, errors.BadCursor, errors.Diverged, errors.Trimmed, errors.IdReused),
]
_PROBLEMS = {error.problem: error for error in _REFUSALS}
_WITH_MEMBERS: Mapping[str, tuple[Callable[..., _Refusal], Mapping[str, type]]] = {
    errors.Conflict.problem: (errors.Conflict, {"key": str, "version": int}),
    errors.InvalidEvent.problem: (errors.InvalidEvent, {"path": str}),
    errors.OutOfSequence.problem: (errors.OutOfSequence, {"sequence": int}),
}
"""By kind: the errors that have members of the problem document, and the types of these."""

_GIVE_CREDENTIALS = (
    " Give the httpx client the credentials that the feed's owner gave you, such as "
    "headers={'Authorization': 'Bearer …'}."
)


_LONGEST = 1_000
"""The most characters of a publisher's detail that errors and logs repeat."""


@dataclass(frozen=True)
class Problem:
    """The members of a problem document; all are empty for an answer without one."""

    kind: str = ""
    detail: str = ""
    members: Mapping[str, object] = field(default_factory=dict)


def error_of(problem: Problem, status: int, message: str) -> _Refusal:
    """Return the error of an answer, with advice on what to do about it."""
    if problem.kind in _WITH_MEMBERS:
        refusal, types = _WITH_MEMBERS[problem.kind]
        members = {name: problem.members.get(name) for name in types}
        if all(isinstance(members[name], kind) for name, kind in types.items()):
            return refusal(message, **members)
    error = _PROBLEMS.get(problem.kind) or _STATUSES.get(status, errors.BadRequest)
    if error is errors.Trimmed:
        earliest = problem.members.get("earliestCursor")
        given = earliest if isinstance(earliest, str) and earliest else None
        return errors.Trimmed(message, earliest=given)
    if error is errors.Unauthorized:
        return errors.Unauthorized(message, advice=_GIVE_CREDENTIALS)
    if error is errors.Forbidden:
        message += " Ask the feed's owner for this right."
    return error(message)


_match_url = re.compile(r"https?://[!-~]{1,600}").fullmatch
"""Match the address of a page about a kind of problem."""

_match_id = re.compile(r"urn:uuid:[0-9a-f-]{36}").fullmatch
"""Match the id under which the publisher's log has what a problem withholds."""


def problem_in(body: bytes) -> Problem:
    """Read a problem document (RFC 9457); return an empty one for any other body."""
    try:
        document = msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Problem()
    kind, detail = document.get("type"), document.get("detail")
    if not isinstance(kind, str):
        return Problem()
    text = printable(detail, longest=_LONGEST) if isinstance(detail, str) else ""
    help_url = document.get("help")
    if text and isinstance(help_url, str) and _match_url(help_url):
        text += f" See {help_url} for what to do."
    kind, instance = kind.rpartition("/")[2], document.get("instance")
    if text and kind == "failed" and isinstance(instance, str) and _match_id(instance):
        text += f" Its id there is {instance}."
    return Problem(kind, text, document)


def seconds_in(retry_after: str) -> float | None:
    """Read a Retry-After header in seconds; None where it is absent or malformed."""
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after)
    try:
        moment = parsedate_to_datetime(retry_after)
    except (ValueError, OverflowError):
        return None
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (zoned - datetime.now(UTC)).total_seconds())
