"""Checks of how a feed refuses."""

from contextlib import suppress

import msgspec

from zeroeventhub.conformance.answer import Answer
from zeroeventhub.conformance.checks.parameters import SERVER_ERROR
from zeroeventhub.conformance.finding import Finding, fail, skip
from zeroeventhub.conformance.registry import check
from zeroeventhub.conformance.sections import KINDS, PROBLEMS, V1
from zeroeventhub.conformance.subject import Subject

PROBLEM = "application/problem+json"
_CANARY = "conformance<canary>"


_KINDS = {
    400: {"bad-request", "bad-cursor"},
    401: {"unauthorized", "forbidden"},
    403: {"forbidden"},
    404: {"not-found"},
    409: {"token-changed"},
    410: {"trimmed", "diverged", "gone"},
    429: {"too-many-requests"},
    500: {"failed"},
    503: {"unavailable"},
}


def _decode(answer: Answer) -> dict[str, object]:
    try:
        return msgspec.json.decode(answer.body, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        fail("A problem document is not a JSON object.", answer)


def _refusals(subject: Subject) -> list[Answer]:
    """Return the refusals that came; at least one is asked for."""
    with suppress(Finding):  # a connection that breaks is what another check finds
        subject.send(subject.parameters(subject.partitions()[0], _CANARY))
    refused = [answer for answer in subject.probe.refusals if 400 <= answer.status < SERVER_ERROR]  # noqa: PLR2004
    # What answers below the feed's own addresses may be somebody else's.
    refused = [answer for answer in refused if answer.status not in {404, 405, 414, 431}]
    if not refused:
        skip("Nothing was refused.")
    return refused


@check("problem-documents", PROBLEMS, "A refusal is a problem document (RFC 9457).", v1=V1)
def _documents(subject: Subject) -> None:
    for answer in _refusals(subject):
        if answer.media_type != PROBLEM:
            fail(f"A refusal came as {answer.media_type or 'nothing in particular'}.", answer)
        document = _decode(answer)
        if document.get("status") != answer.status:
            fail("A problem document names another status than its answer.", answer)
        for member in ("type", "title", "detail", "instance"):
            if not isinstance(document.get(member), str):
                fail(f"A problem document has no {member}.", answer)
        if ("earliestCursor" in document) is not str(document["type"]).endswith("/trimmed"):
            fail("earliestCursor is there with trimmed, and only there.", answer)


@check("problem-kinds", KINDS, "The type of a problem is one of the specification's kinds.", v1=V1)
def _kinds(subject: Subject) -> None:
    for answer in _refusals(subject):
        if answer.media_type != PROBLEM:
            skip("Refusals are no problem documents.", answer)
        start, _, kind = str(_decode(answer).get("type")).rpartition("/")
        if start != "urn:zeroeventhub:problem" or kind not in _KINDS.get(answer.status, {kind}):
            fail(f"Status {answer.status} came with a type of its own.", answer)


@check("problem-echo", PROBLEMS, "A refusal repeats nothing of the request.", v1=V1)
def _echo(subject: Subject) -> None:
    for answer in _refusals(subject):
        if _CANARY.encode() in answer.body:
            fail("A refusal repeats the cursor that was sent.", answer)


@check("problem-caching", PROBLEMS, "A refusal must not be kept.", v1=V1)
def _caching(subject: Subject) -> None:
    for answer in _refusals(subject):
        if answer.may_be_kept:
            fail("A refusal says that it may be kept.", answer)


@check("server-errors", PROBLEMS, "No request makes the publisher fail.", v1=V1)
def _errors(subject: Subject) -> None:
    _refusals(subject)
    for answer in subject.probe.refusals:
        if answer.status >= SERVER_ERROR and answer.status not in {501, 503}:
            fail(f"A request was answered with status {answer.status}.", answer)
