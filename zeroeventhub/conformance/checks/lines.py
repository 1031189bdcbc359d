"""Checks of the form of every page that was seen."""

from contextlib import suppress

from zeroeventhub.conformance.answer import Answer, PageText
from zeroeventhub.conformance.finding import Finding, fail, note, skip
from zeroeventhub.conformance.registry import check
from zeroeventhub.conformance.sections import (
    CAUGHT_UP,
    CURSORS,
    JSON,
    LIMITS,
    LINES,
    MEDIA_TYPES,
    PAGES,
    SPLITTING,
    V1,
)
from zeroeventhub.conformance.subject import MOST_PARTITIONS, Subject
from zeroeventhub.protocol import LAST
from zeroeventhub.wire import NDJSON_TYPE as MEDIA_TYPE


def _seen(subject: Subject) -> list[tuple[Answer, PageText]]:
    for partition in subject.partitions()[:MOST_PARTITIONS]:
        subject.walk(partition)
        with suppress(Finding):
            subject.page(partition, LAST)
    if not subject.pages:
        skip("No page came.")
    return subject.pages


def _form(name: str, section: str, sentence: str, *kinds: str, lenient: bool = False) -> None:
    """Put a check on the list that no page has a fault of these kinds."""

    def run(subject: Subject) -> None:
        for answer, page in _seen(subject):
            for kind in kinds:
                if kind in page.faults:
                    (note if lenient else fail)(f"In a page {page.faults[kind]}.", answer)

    check(name, section, sentence, v1=V1)(run)


_form("page-checkpoint", PAGES, "Every page has a checkpoint.", "checkpoint")
_form("page-end", PAGES, "An answer ends with a checkpoint: nothing stands behind it.", "tail")
_form("page-newline", SPLITTING, "The last byte of a page is a newline.", "newline")
_form("lines-json", LINES, "Every line is a JSON object.", "json", "deep")
_form("lines-strict", JSON, "There is no NaN and no Infinity: they are not JSON.", "constant")
_form("lines-utf8", JSON, "Every line is UTF-8.", "utf8")
_form("lines-bom", MEDIA_TYPES, "No page starts with a byte order mark.", "bom")
_form("lines-surrogates", JSON, "No surrogate stands without its other half.", "surrogate")
_form("lines-members", JSON, "No line has a member twice.", "twice")
_form("lines-one-command", LINES, "A line is an event or a checkpoint, not both.", "both")
_form("lines-empty", SPLITTING, "No line is empty.", "empty")
_form("lines-plain", SPLITTING, "Lines end in 0x0A alone.", "return", lenient=True)
_form("lines-flags", CAUGHT_UP, "caughtUp and stopReached are true, or absent.", "flag")
_form("lines-headers", LINES, "Headers are an object.", "headers")
_form("line-length", LIMITS, "A line has 65,535 bytes at most.", "long", lenient=True)
_form("event-data", LINES, "An event's data is an object or a string.", "data", lenient=True)
_form("cursor-form", CURSORS, "A cursor is 1 to 4096 characters of printable ASCII.", "cursor")


def _partition_lines(subject: Subject) -> None:
    for answer, page in _seen(subject):
        if "partition" in page.faults:
            fail(f"In a page {page.faults['partition']}.", answer)


check("partition-lines", V1, "Every line names its partition, as a number.", v2=False, v1=V1)(
    _partition_lines
)


@check("page-media-type", MEDIA_TYPES, "A page is application/x-ndjson.", v1=V1)
def _media_type(subject: Subject) -> None:
    for answer, _ in _seen(subject):
        if answer.media_type != MEDIA_TYPE:
            fail(f"A page came as {answer.media_type or 'nothing in particular'}.", answer)


@check("page-encoding", MEDIA_TYPES, "A page is not compressed for who asks for identity.", v1=V1)
def _encoding(subject: Subject) -> None:
    for answer, _ in _seen(subject):
        encoding = answer.headers.get("content-encoding", "identity").lower()
        if encoding != "identity":
            fail(f"A page came as {encoding}, though identity was asked for.", answer)
