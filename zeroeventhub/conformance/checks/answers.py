"""Checks of all received answers: caching, the lines of pages, and refusals."""

from contextlib import suppress
from typing import Any

from zeroeventhub.conformance.answer import Answer, Finding, PageText, fail, note, skip
from zeroeventhub.conformance.check import check, register
from zeroeventhub.conformance.checks.layout import EXTENSION_REQUESTS
from zeroeventhub.conformance.subject import (
    BAD_REQUEST,
    HINT,
    MOST_PARTITIONS,
    Subject,
    Walk,
    expect,
)
from zeroeventhub.extensions import EXTENSIONS
from zeroeventhub.protocol import FIRST, LAST
from zeroeventhub.wire import NDJSON_TYPE

# Caching, and HEAD.

_HINTS = ("2", "5")


@check("11", "A page at the head must not be kept: it grows.", v1=True, needs=0)
def caching_head(subject: Subject, partition: int, known: Walk) -> None:
    _, answer = subject.head(partition)
    for seen, page in [(answer, PageText()), *known.pages, *subject.pages]:
        # A page with as many events as requested may be full, though no event follows yet.
        caught_up = any(one.caught_up for one in page.checkpoints)
        at_head = caught_up or not page.events or (known.at_head and seen is _last_page(known))
        if seen.cacheable and at_head:
            fail("A page at the head says that it may be kept.", seen)


def _last_page(known: Walk) -> Answer | None:
    """Return the last page with events, if it has fewer than requested."""
    ends = [(answer, page) for answer, page in known.pages if page.events][-1:]
    return ends[0][0] if ends and len(ends[0][1].events) < HINT else None


@check("11", "A page of _first or _last must not be kept.", v1=True, needs=0)
def caching_special(subject: Subject, partition: int, _known: Walk) -> None:
    for cursor in (FIRST, LAST):
        if subject.ask(partition, cursor, [("pagesizehint", "1")]).cacheable:
            fail(f"The page of {cursor} says that it may be kept.")


@check("3", "The discovery document must not be kept.")
def caching_discovery(subject: Subject) -> None:
    answer = subject.discovery()
    if answer.cacheable:
        fail("The discovery document says that it may be kept, so a new token comes late.", answer)


@check("11", "What is not a full page has Cache-Control: no-store.", v1=True)
def caching_no_store(subject: Subject) -> None:
    subject.sample()
    answers = [answer for answer, _ in subject.pages]
    if not subject.v1:
        answers.append(subject.discovery())
    for answer in answers:
        if not answer.cacheable and "no-store" not in answer.cache_control:
            fail("An answer does not say no-store.", answer)
    for name in sorted(subject.extensions & EXTENSION_REQUESTS.keys()):
        given = [*subject.place(), *EXTENSION_REQUESTS[name].items()]
        answer = subject.probe.ask(f"/{EXTENSIONS[name].path}", given)
        if answer.ok and "no-store" not in answer.cache_control:
            fail(f"The answer of {name} does not say no-store.", answer)


@check("11", "A page that may be kept is private or public, for a year, and immutable.")
def caching_full(subject: Subject) -> None:
    for *_, kept in _kept(subject):
        control = kept.cache_control
        scopes = {"private", "public"} & control.keys()
        is_for_ever = control.get("max-age") == "31536000" and "immutable" in control
        if len(scopes) != 1 or not is_for_ever:
            fail(
                "A page that may be kept has another Cache-Control than section 11 asks for.", kept
            )


@check("11", "A page that may be kept is the same each time.")
def caching_repeats(subject: Subject) -> None:
    for partition, cursor, hint, kept in _kept(subject):
        for _ in range(2):
            again = subject.ask(partition, cursor, [("pagesizehint", hint)])
            if again.body != kept.body:
                fail("A page that may be kept came with other bytes.")
            if again.headers.get("etag") != kept.headers.get("etag"):
                fail("The same page came with another ETag.")


@check("11", "If-None-Match with a page's own ETag is answered with 304.")
def caching_etag(subject: Subject) -> None:
    for partition, cursor, hint, kept in _kept(subject):
        etag = kept.headers.get("etag")
        if etag is None:
            fail("A page that may be kept has no ETag.", kept)
        if etag.startswith("W/"):
            fail("The ETag of a page that may be kept is a weak one.", kept)
        extra = [("pagesizehint", hint)]
        for sent in (etag, f'"conformance", {etag}', "*"):
            answer = subject.ask(partition, cursor, extra, headers={"If-None-Match": sent})
            expect(answer, "If-None-Match with its ETag", 304)
            if answer.body:
                fail("A 304 has a body.")
            if answer.headers.get("etag") != etag or not answer.cacheable:
                fail("A 304 has another ETag or Cache-Control than its page.")
        headers = {"If-None-Match": '"conformance"'}
        expect(subject.ask(partition, cursor, extra, headers=headers), "Another ETag")


def _kept(subject: Subject) -> list[tuple[int, str, str, Answer]]:
    """Return requests for cacheable pages, and their answers."""
    partition, known = subject.sample(3)
    found = []
    for one in known.inner[:4]:
        for hint in _HINTS:
            answer = subject.ask(partition, one.cursor, [("pagesizehint", hint)])
            if answer.ok and answer.cacheable:
                found.append((partition, one.cursor, hint, answer))
    return found or skip("No page says that it may be kept.")


@check("2.1", "HEAD is answered as GET, without the body.", v1=True, needs=0)
def head_request(subject: Subject, partition: int, known: Walk) -> None:
    cursor = known.checkpoints[0].cursor if known.checkpoints else FIRST
    extra = [("pagesizehint", "1")]
    page = subject.ask(partition, cursor, extra)
    pairs = [(page, subject.ask(partition, cursor, extra, method="HEAD"))]
    if not subject.v1:
        pairs.append((subject.discovery(), subject.probe.ask(method="HEAD")))
    for answer, head in pairs:
        if head.status != answer.status:
            fail(f"GET is answered with {answer.status}, HEAD with {head.status}.", head)
        if head.body:
            fail("The answer to HEAD has a body.", head)
        if head.media_type != answer.media_type:
            fail("HEAD names another media type than GET.", head)
        lengths = [one.headers.get("content-length") for one in (answer, head)]
        if lengths[0] != lengths[1]:
            fail(f"GET says Content-Length {lengths[0]}, HEAD {lengths[1]}.", head)


# The lines of every received page.


def _seen(subject: Subject) -> list[tuple[Answer, PageText]]:
    for partition in subject.partitions()[:MOST_PARTITIONS]:
        subject.walk(partition)
        with suppress(Finding):
            subject.page(partition, LAST)
    return subject.pages or skip("No page came.")


def _lines(
    section: str,
    name: str,
    sentence: str,
    *kinds: str,
    lenient: bool = False,
    v1: bool = True,
    v2: bool = True,
) -> None:
    """Register a check that no page has a fault of these kinds."""

    def run(subject: Subject) -> None:
        for answer, page in _seen(subject):
            for kind in kinds:
                if kind in page.faults:
                    (note if lenient else fail)(f"In a page {page.faults[kind]}.", answer)

    register(section, name, sentence, run, v1=v1, v2=v2)


_lines("6", "page-checkpoint", "Every page has a checkpoint.", "checkpoint")
_lines("6", "page-end", "An answer ends with a checkpoint: nothing follows it.", "tail")
_lines("5.1", "page-newline", "The last byte of a page is a newline.", "newline")
_lines("5.2", "lines-json", "Every line is a JSON object.", "json", "deep")
_lines("2.3", "lines-strict", "There is no NaN and no Infinity: they are not JSON.", "constant")
_lines("2.3", "lines-utf8", "Every line is UTF-8.", "utf8")
_lines("2.2", "lines-bom", "No page starts with a byte order mark.", "bom")
_lines("2.3", "lines-surrogates", "No surrogate is without its other half.", "surrogate")
_lines("2.3", "lines-members", "No line has a member twice.", "twice")
_lines("5.2", "lines-one-command", "A line is an event or a checkpoint, not both.", "both")
_lines("5.1", "lines-empty", "No line is empty.", "empty")
_lines("5.1", "lines-plain", "Lines end in 0x0A alone.", "return", lenient=True)
_lines("9.2", "lines-flags", "caughtUp and stopReached are true, or absent.", "flag")
_lines("5.2", "lines-headers", "Headers are an object of strings.", "headers")
_lines("16", "line-length", "A line has 65,535 bytes at most.", "long", lenient=True)
_lines("5.2", "event-data", "An event's data is an object or a string.", "data", lenient=True)
_lines("7.1", "cursor-form", "A cursor is 1 to 4096 characters of printable ASCII.", "cursor")
_lines("5.2", "lines-partition", "No line names another partition.", "partition", v1=False)
_lines(
    "12", "partition-lines", "Every line names its partition, as a number.", "partition", v2=False
)


@check("2.2", "A page is application/x-ndjson.", v1=True)
def page_media_type(subject: Subject) -> None:
    for answer, _ in _seen(subject):
        if answer.media_type != NDJSON_TYPE:
            fail(f"A page came as {answer.media_type}.", answer)


@check("2.2", "A page is not compressed if the request asks for identity.", v1=True)
def page_encoding(subject: Subject) -> None:
    for answer, _ in _seen(subject):
        encoding = answer.headers.get("content-encoding", "identity").lower()
        if encoding != "identity":
            fail(f"A page came as {encoding}, though the request asked for identity.", answer)


# Refusals.

_PROBLEM = "application/problem+json"
_CANARY = "conformance<canary>"
_SERVER_ERROR = 500
_KINDS = {
    400: {"bad-request", "bad-cursor"},
    401: {"unauthorized", "forbidden"},
    403: {"forbidden"},
    404: {"not-found"},
    409: {"token-changed", "conflict", "id-reused", "out-of-sequence"},
    410: {"trimmed", "diverged", "gone"},
    413: {"too-large"},
    415: {"unsupported-media-type"},
    422: {"invalid-event"},
    429: {"too-many-requests"},
    500: {"failed"},
    503: {"unavailable"},
    507: {"storage-full"},
}


def _problem(answer: Answer) -> dict[str, Any]:
    document = answer.document
    if not isinstance(document, dict):
        fail("A problem document is not a JSON object.", answer)
    return document


def _refusals(subject: Subject) -> list[Answer]:
    """Return all refusals so far, after requests that have to be refused."""
    with suppress(Finding):  # another check finds a broken connection
        good = dict([*subject.parameters(), ("pagesizehint", "1")])
        for name in good:
            subject.send([*(good | {name: _CANARY}).items()])
    refused = [one for one in subject.probe.refusals if BAD_REQUEST <= one.status < _SERVER_ERROR]
    # These may be the answers of another server, such as a proxy.
    refused = [answer for answer in refused if answer.status not in {404, 405, 414, 431}]
    return refused or skip("Nothing was refused.")


@check("10.1", "A refusal is a problem document (RFC 9457).", v1=True)
def problem_documents(subject: Subject) -> None:
    instances: set[str] = set()
    for answer in _refusals(subject):
        if answer.media_type != _PROBLEM:
            fail(f"A refusal came as {answer.media_type}.", answer)
        document = _problem(answer)
        if document.get("status") != answer.status:
            fail("A problem document names another status than its answer.", answer)
        for member in ("type", "title", "detail", "instance"):
            if not isinstance(document.get(member), str):
                fail(f"A problem document has no {member}.", answer)
        if not document["instance"].startswith("urn:uuid:") or document["instance"] in instances:
            fail("The instance of a problem document is not a urn:uuid: of its own.", answer)
        instances.add(document["instance"])
        if ("earliestCursor" in document) is not str(document["type"]).endswith("/trimmed"):
            fail("earliestCursor belongs to a problem of kind trimmed, and to no other.", answer)


@check("10.2", "The type of a problem is one of the specification's kinds.", v1=True)
def problem_kinds(subject: Subject) -> None:
    for answer in _refusals(subject):
        if answer.media_type != _PROBLEM:
            skip("Refusals are not problem documents.", answer)
        start, _, kind = str(_problem(answer).get("type")).rpartition("/")
        if start != "urn:zeroeventhub:problem" or kind not in _KINDS.get(answer.status, {kind}):
            fail(f"Status {answer.status} came with a type of its own.", answer)


@check("10.1", "A refusal repeats nothing of the request.", v1=True)
def problem_echo(subject: Subject) -> None:
    for answer in _refusals(subject):
        if _CANARY.encode() in answer.body:
            fail("A refusal repeats a parameter that was sent.", answer)


@check("10.1", "A refusal has Cache-Control: no-store.", v1=True)
def problem_caching(subject: Subject) -> None:
    for answer in _refusals(subject):
        if answer.cacheable:
            fail("A refusal says that it may be kept.", answer)
        if "no-store" not in answer.cache_control:  # without it, caches may keep some
            fail("A refusal does not say no-store.", answer)


@check("10.1", "No request makes the publisher fail.", v1=True)
def server_errors(subject: Subject) -> None:
    _refusals(subject)
    for answer in subject.probe.refusals:
        if answer.status >= _SERVER_ERROR and answer.status not in {501, 503}:
            fail(f"A request was answered with status {answer.status}.", answer)
