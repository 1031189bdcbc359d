"""Checks of the extension segments."""

import msgspec

from zeroeventhub.conformance.checks.parameters import refused
from zeroeventhub.conformance.checks.stop import read_until
from zeroeventhub.conformance.finding import fail, skip
from zeroeventhub.conformance.registry import check
from zeroeventhub.conformance.sections import SEGMENTS as SECTION
from zeroeventhub.conformance.subject import Subject
from zeroeventhub.protocol import FIRST, LAST, SEGMENTS

_SUFFIX = "/segments"
_SCHEMES = ("https://", "http://", "file://")
_MOST = 100


class _Segment(msgspec.Struct, frozen=True, rename="camel"):
    """Hold what an answer says of a file."""

    url: str
    size: int
    after: int
    up_to: int
    cursor: str


class _Segments(msgspec.Struct, frozen=True):
    """Hold what an answer says."""

    segments: list[_Segment]
    cursor: str


def _files(subject: Subject, partition: int, cursor: str) -> _Segments:
    parameters = [("token", subject.token), ("partition", str(partition)), ("cursor", cursor)]
    answer = subject.probe.ask(_SUFFIX, parameters)
    if not answer.ok:
        fail(f"Files were answered with status {answer.status}.", answer)
    if answer.media_type != "application/json":
        fail(f"Files came as {answer.media_type or 'nothing in particular'}.", answer)
    try:
        found = msgspec.json.decode(answer.body, type=_Segments)
    except (msgspec.DecodeError, RecursionError):
        fail("The answer names no files, or not where they end.", answer)
    if {FIRST, LAST, ""} & {found.cursor, *(one.cursor for one in found.segments)}:
        fail("A cursor is _first or _last, not a real one.", answer)
    if len(found.segments) > _MOST:
        fail(f"{len(found.segments)} files were named, and {_MOST} may be.", answer)
    return found


@check(
    "segments",
    SECTION,
    "Files follow each other, and pages go on behind them.",
    extension=SEGMENTS,
)
def _chain(subject: Subject) -> None:
    partition, known = subject.sample(1)
    found = _files(subject, partition, FIRST)
    answer, end = subject.probe.last, 0
    if not found.segments:
        skip("No events of the partition are in files.")
    for one in found.segments:
        if not one.url.startswith(_SCHEMES) or one.size < 1:
            fail("A file has no URL that can be read, or no size.", answer)
        if not end <= one.after < one.up_to:
            fail("A file does not begin behind the one before, or ends before it begins.", answer)
        end = one.up_to
    if found.cursor != found.segments[-1].cursor:
        fail("The cursor does not stand behind the last file.", answer)
    events = read_until(subject, partition, FIRST, found.cursor)
    subject.expect_same(known.events[: len(events)], events, "up to the end of files")


@check(
    "segments-end",
    SECTION,
    "Behind the last file no file is named, and the cursor is the one that was asked for.",
    extension=SEGMENTS,
)
def _end(subject: Subject) -> None:
    partition, _ = subject.sample(1)
    cursor, found = FIRST, _files(subject, partition, FIRST)
    while found.segments:
        if found.cursor == cursor:
            fail("Files were named, and the cursor stays where it was.", subject.probe.last)
        cursor = found.cursor
        found = _files(subject, partition, cursor)
    if cursor not in {FIRST, found.cursor}:
        fail("No file was named, and the cursor is another.", subject.probe.last)


@check(
    "segments-malformed",
    SECTION,
    "A request for files from no cursor, or from _last, is 400.",
    extension=SEGMENTS,
)
def _malformed(subject: Subject) -> None:
    common = [("token", subject.token), ("partition", str(subject.partitions()[0]))]
    refused(subject, common, "A request without a cursor", suffix=_SUFFIX)
    for cursor in (LAST, "", "conformance-no-such-cursor"):
        parameters = [*common, ("cursor", cursor)]
        refused(subject, parameters, f"cursor={cursor!r}", suffix=_SUFFIX, statuses={400, 410})
