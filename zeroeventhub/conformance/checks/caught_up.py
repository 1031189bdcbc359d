"""Checks of the extension caught-up."""

from zeroeventhub.conformance.finding import fail
from zeroeventhub.conformance.registry import check
from zeroeventhub.conformance.sections import CAUGHT_UP as SECTION
from zeroeventhub.conformance.subject import Subject
from zeroeventhub.protocol import CAUGHT_UP, FIRST


@check("caught-up", SECTION, "At the head the checkpoint says caughtUp.", extension=CAUGHT_UP)
def _at_head(subject: Subject) -> None:
    partition, _ = subject.sample()
    for _ in range(3):
        cursor, _ = subject.head(partition)
        page = subject.page(partition, cursor)
        if page.marks[-1].caught_up is True:
            return
        if page.events or page.cursor != cursor:
            continue  # it is being written to
    fail("At the head no checkpoint says caughtUp.", subject.probe.last)


@check("caught-up-early", SECTION, "Before the head no checkpoint says so.", extension=CAUGHT_UP)
def _early(subject: Subject) -> None:
    partition, known = subject.sample(2)
    for cursor, behind in [(FIRST, 0), *((mark.cursor, mark.count) for mark in known.ends()[:5])]:
        page = subject.page(partition, cursor, [("pagesizehint", "1")])
        count = behind + len(page.settled)
        if page.marks[-1].caught_up is True and count < len(known.events):
            fail("A checkpoint says caughtUp, and events follow it.", subject.probe.last)
    for answer, page in subject.pages:
        if any(mark.caught_up is True for mark in page.marks[:-1]):
            fail("A checkpoint says caughtUp, and more of its page follows.", answer)
