"""Checks of what caches are told, and of HEAD."""

from zeroeventhub.conformance.answer import Answer, PageText
from zeroeventhub.conformance.finding import fail, skip
from zeroeventhub.conformance.registry import check
from zeroeventhub.conformance.sections import CACHING, DISCOVERY, REQUESTS, V1
from zeroeventhub.conformance.subject import Subject
from zeroeventhub.conformance.walk import HINT, Walk
from zeroeventhub.protocol import FIRST, LAST

_NOT_MODIFIED = 304
_HINTS = ("2", "5")


@check("caching-head", CACHING, "A page at the head must not be kept: it grows.", v1=V1)
def _head(subject: Subject) -> None:
    partition, known = subject.sample()
    _, answer = subject.head(partition)
    for seen, page in [(answer, PageText()), *known.pages, *subject.pages]:
        # A page with all the events that were asked for may be full, though none follows yet.
        told = any(mark.caught_up is True for mark in page.marks)
        at_head = told or not page.events or (known.at_head and seen is _last_page(known))
        if seen.may_be_kept and at_head:
            fail("A page at the head says that it may be kept.", seen)


def _last_page(known: Walk) -> Answer | None:
    """Return the last page with events, if it has fewer than were asked for."""
    ends = [(answer, page) for answer, page in known.pages if page.events][-1:]
    return ends[0][0] if ends and len(ends[0][1].events) < HINT else None


@check("caching-special", CACHING, "A page of _first or _last must not be kept.", v1=V1)
def _special(subject: Subject) -> None:
    partition, _ = subject.sample()
    for cursor in (FIRST, LAST):
        answer = subject.ask(partition, cursor, [("pagesizehint", "1")])
        if answer.may_be_kept:
            fail(f"The page of {cursor} says that it may be kept.", answer)


@check("caching-discovery", DISCOVERY, "The discovery document must not be kept.")
def _discovery(subject: Subject) -> None:
    answer = subject.discovery()
    if answer.may_be_kept:
        fail("The discovery document says that it may be kept, so a new token comes late.", answer)


@check("caching-no-store", CACHING, "What is not a full page has Cache-Control: no-store.", v1=V1)
def _no_store(subject: Subject) -> None:
    subject.sample()
    answers = [answer for answer, _ in subject.pages]
    if not subject.v1:
        answers.append(subject.discovery())
    for answer in answers:
        if not answer.may_be_kept and "no-store" not in answer.cache_control:
            fail("An answer does not say no-store.", answer)


@check("caching-repeats", CACHING, "A page that may be kept is the same whenever it is asked for.")
def _repeats(subject: Subject) -> None:
    for partition, cursor, hint, kept in _kept(subject):
        for _ in range(2):
            again = subject.ask(partition, cursor, [("pagesizehint", hint)])
            if again.body != kept.body:
                fail("A page that may be kept came with other bytes.", again)
            if again.headers.get("etag") != kept.headers.get("etag"):
                fail("The same page came with another ETag.", again)


@check("caching-etag", CACHING, "If-None-Match with a page's own ETag is answered with 304.")
def _etag(subject: Subject) -> None:
    for partition, cursor, hint, kept in _kept(subject):
        etag = kept.headers.get("etag")
        if etag is None:
            fail("A page that may be kept has no ETag.", kept)
        if etag.startswith("W/"):
            fail("The ETag of a page that may be kept is a weak one.", kept)
        for sent in (etag, f'"conformance", {etag}', "*"):
            headers = {"If-None-Match": sent}
            extra = [("pagesizehint", hint)]
            answer = subject.ask(partition, cursor, extra, headers=headers)
            if answer.status != _NOT_MODIFIED:
                fail(f"If-None-Match with its ETag was answered with {answer.status}.", answer)
            if answer.body:
                fail("A 304 has a body.", answer)
            if answer.headers.get("etag") != etag or not answer.may_be_kept:
                fail("A 304 has another ETag or Cache-Control than its page.", answer)
        headers = {"If-None-Match": '"conformance"'}
        answer = subject.ask(partition, cursor, [("pagesizehint", hint)], headers=headers)
        if not answer.ok:
            fail(f"Another ETag was answered with {answer.status}.", answer)


def _kept(subject: Subject) -> list[tuple[int, str, str, Answer]]:
    """Return requests for pages that say that they may be kept."""
    partition, known = subject.sample(3)
    found = []
    for mark in known.ends()[:4]:
        for hint in _HINTS:
            answer = subject.ask(partition, mark.cursor, [("pagesizehint", hint)])
            if answer.ok and answer.may_be_kept:
                found.append((partition, mark.cursor, hint, answer))
    if not found:
        skip("No page says that it may be kept.")
    return found


@check("head-request", REQUESTS, "HEAD is answered as GET, without the body.", v1=V1)
def _head_request(subject: Subject) -> None:
    partition, known = subject.sample()
    cursor = known.marks[0].cursor if known.marks else FIRST
    extra = [("pagesizehint", "1")]
    pairs = [
        (
            subject.ask(partition, cursor, extra),
            subject.ask(partition, cursor, extra, method="HEAD"),
        )
    ]
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
