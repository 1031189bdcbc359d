"""Checks of the extension arrow."""

from importlib.util import find_spec

from zeroeventhub.conformance.answer import Answer, PageText
from zeroeventhub.conformance.finding import fail, skip
from zeroeventhub.conformance.registry import check
from zeroeventhub.conformance.sections import ARROW as SECTION
from zeroeventhub.conformance.subject import Subject
from zeroeventhub.errors import ZeroEventHubError
from zeroeventhub.protocol import ARROW, FIRST
from zeroeventhub.wire import ARROW_TYPE as MEDIA_TYPE
from zeroeventhub.wire import NDJSON_TYPE as LINES

_PREFERRED = f"{MEDIA_TYPE}, {LINES};q=0.5"
_OTHERS = (
    None,
    "*/*",
    LINES,
    f"{MEDIA_TYPE};q=0",
    f"{MEDIA_TYPE};q=0.5, {LINES}",
    f"{MEDIA_TYPE};q=0.5, */*",
)


def _ask(subject: Subject, partition: int, cursor: str, accept: str | None) -> Answer:
    headers = {} if accept is None else {"Accept": accept}
    return subject.ask(partition, cursor, [("pagesizehint", "5")], headers=headers)


def _ask_for_arrow(subject: Subject, partition: int, cursor: str) -> Answer:
    answer = _ask(subject, partition, cursor, _PREFERRED)
    if not answer.ok or answer.media_type != MEDIA_TYPE:
        fail(f"Arrow was asked for; {answer.status}, {answer.media_type} came.", answer)
    return answer


def _places(subject: Subject) -> tuple[int, list[str]]:
    partition, known = subject.sample(1)
    return partition, [FIRST, *[mark.cursor for mark in known.marks][-3:]]


@check("arrow", SECTION, "A page is the same as Arrow and in lines.", extension=ARROW)
def _same(subject: Subject) -> None:
    if find_spec("pyarrow") is None:
        skip("It takes pyarrow to see: pip install 'zeroeventhub[arrow]'")
    partition, places = _places(subject)
    for cursor in places:
        before = _ask(subject, partition, cursor, LINES)
        answer = _ask_for_arrow(subject, partition, cursor)
        after = _ask(subject, partition, cursor, LINES)
        # Where something has come meanwhile, they need not be the same.
        if before.body == after.body:
            _expect_same(_lines_of(answer, partition), PageText.of(after.body), answer)


def _lines_of(answer: Answer, partition: int) -> PageText:
    """Read a page as Arrow, as if it had come in lines."""
    from zeroeventhub.wire.arrow import ArrowDecoder  # noqa: PLC0415 - of another extra

    decoder = ArrowDecoder(partition)
    try:
        decoder.feed(answer.body)
        page = decoder.page()
    except ZeroEventHubError as error:
        fail(f"The Arrow stream is no page: {error}", answer)
    texts = [row["data"] for batch in page.batches for row in batch.to_pylist()]
    flags = ',"caughtUp":true' if page.caught_up else ""
    flags += ',"stopReached":true' if page.stop_reached else ""
    lines = [f'{{"data":{text}}}\n' for text in texts]
    return PageText.of("".join([*lines, f'{{"cursor":"{page.cursor}"{flags}}}\n']).encode())


def _expect_same(found: PageText, expected: PageText, answer: Answer) -> None:
    events = [[event.identity for event in page.settled] for page in (found, expected)]
    if events[0] != events[1]:
        fail("The page has other events as Arrow than it has in lines.", answer)
    ends = [
        (page.cursor, page.marks[-1].caught_up is True, page.marks[-1].stop_reached is True)
        for page in (found, expected)
    ]
    if ends[0] != ends[1]:
        fail("The page has another checkpoint as Arrow than it has in lines.", answer)


@check("arrow-others", SECTION, "Who does not prefer Arrow gets lines.", extension=ARROW)
def _others(subject: Subject) -> None:
    partition, places = _places(subject)
    for accept in _OTHERS:
        answer = _ask(subject, partition, places[0], accept)
        if answer.media_type == MEDIA_TYPE:
            fail(f"Arrow came to a request with Accept: {accept or 'nothing'}.", answer)


@check("arrow-caching", SECTION, "Caches tell the two forms of a page apart.", extension=ARROW)
def _caching(subject: Subject) -> None:
    partition, places = _places(subject)
    for cursor in places:
        lines = _ask(subject, partition, cursor, LINES)
        answer = _ask_for_arrow(subject, partition, cursor)
        for one in (lines, answer):
            named = one.headers.get("vary", "").lower().split(",")
            if not {"accept", "*"} & {name.strip() for name in named}:
                fail("A page does not say Vary: Accept.", one)
        if answer.headers.get("etag") and answer.headers["etag"] == lines.headers.get("etag"):
            fail("Both forms of a page have the same ETag.", answer)
