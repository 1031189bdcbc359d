"""Checks of what a feed says of itself."""

import re
from typing import Any

from zeroeventhub.conformance.finding import fail, note, skip
from zeroeventhub.conformance.registry import check
from zeroeventhub.conformance.sections import DISCOVERY, EXTENSIONS, MEDIA_TYPES, PARTITIONS, TOKEN
from zeroeventhub.conformance.subject import Subject
from zeroeventhub.protocol import FIRST, HIGHEST_PARTITION

_TOKEN = re.compile("[!-~]{1,256}")
_ID = re.compile("0|[1-9][0-9]{0,4}")


@check("discovery-document", DISCOVERY, "A GET of the feed's address answers 200 with JSON.")
def _document(subject: Subject) -> None:
    answer = subject.discovery()
    if not answer.ok:
        fail(f"Discovery answered with status {answer.status}.", answer)
    subject.document()
    missing = {"token", "partitions"} - set(subject.document())
    if missing:
        fail(f"The document has no {' and no '.join(sorted(missing))}.", answer)
    _entries(subject)


@check("discovery-media-type", MEDIA_TYPES, "The discovery document is application/json.")
def _media_type(subject: Subject) -> None:
    answer = subject.discovery()
    if answer.ok and answer.media_type != "application/json":
        fail(f"It came as {answer.media_type or 'nothing in particular'}.", answer)


@check("discovery-token", DISCOVERY, "The token is a string of 1 to 256 printable characters.")
def _token(subject: Subject) -> None:
    token = subject.document().get("token")
    if not isinstance(token, str):
        fail(f"The token is {token!r}, which is not a string.", subject.discovery())
    if not _TOKEN.fullmatch(token):
        fail("The token is not 1 to 256 characters of printable ASCII.", subject.discovery())


@check("exactly-once", DISCOVERY, "exactlyOnce says whether events may come twice.")
def _exactly_once(subject: Subject) -> None:
    document = subject.document()
    if "exactlyOnce" not in document:
        note("exactlyOnce is missing; consumers take it for false.", subject.discovery())
    if not isinstance(document["exactlyOnce"], bool):
        fail("exactlyOnce is neither true nor false.", subject.discovery())


@check(
    "partition-ids", DISCOVERY, "Partition ids are strings of whole numbers, 0 to 32767, each once."
)
def _ids(subject: Subject) -> None:
    seen = set()
    for entry in _entries(subject):
        partition = entry.get("id")
        _expect_id(subject, "id", partition)
        if partition in seen:
            fail(f"Partition {partition} is listed twice.", subject.discovery())
        seen.add(partition)


@check("layout-ids", DISCOVERY, "startsAfterPartition and cursorFromPartitions hold ids: strings.")
def _references(subject: Subject) -> None:
    for entry in _entries(subject):
        if not isinstance(entry.get("closed"), bool | None):
            fail("closed is neither true nor false.", subject.discovery())
        if entry.get("startsAfterPartition") is not None:
            _expect_id(subject, "startsAfterPartition", entry["startsAfterPartition"])
        ancestors = entry.get("cursorFromPartitions") or []
        if not isinstance(ancestors, list):
            fail("cursorFromPartitions is not a list.", subject.discovery())
        for ancestor in ancestors:
            _expect_id(subject, "cursorFromPartitions", ancestor)


@check("layout-order", PARTITIONS, "A partition starts after a closed one, and never after itself.")
def _order(subject: Subject) -> None:
    known = {str(entry.get("id")): entry for entry in _entries(subject)}
    for name, entry in known.items():
        seen = set()
        child, parent = name, _parent(entry)
        while parent is not None:
            if parent in seen or parent == name:
                fail(f"Partition {name} starts after itself.", subject.discovery())
            if parent not in known:
                break
            if known[parent].get("closed") is not True:
                fail(
                    f"Partition {child} starts after partition {parent}, which is not closed.",
                    subject.discovery(),
                )
            seen.add(parent)
            child, parent = parent, _parent(known[parent])


@check("extensions", DISCOVERY, "extensions, where it is there, is a sorted list of names.")
def _extensions(subject: Subject) -> None:
    listed = subject.document().get("extensions")
    if listed is None:
        return
    answer = subject.discovery()
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        fail("extensions is not a list of strings.", answer)
    if listed != sorted(set(listed)):
        fail("extensions is not sorted, or names one twice.", answer)
    for name in ("splits", "cursor-of-count"):
        if name in listed and "stop" not in listed:
            fail(f"{name} is listed without stop.", answer)


@check("extensions-absent", EXTENSIONS, "What a feed does not list is answered with 404.")
def _absent(subject: Subject) -> None:
    partition = subject.partitions()[0]
    common = [("token", subject.token), ("partition", str(partition))]
    for name, suffix, *parameters in (
        ("cursor-of-time", "/cursor", ("time", "2020-01-01T00:00:00Z")),
        ("splits", "/splits", ("count", "2")),
        ("lag", "/lag", ("cursor", FIRST)),
        ("cursor-of-count", "/cursor-of-count", ("cursor", FIRST), ("events", "2")),
        ("key-history", "/key-history", ("key", "conformance")),
        ("segments", "/segments", ("cursor", FIRST)),
    ):
        if name not in subject.extensions:
            answer = subject.probe.ask(suffix, [*common, *parameters])
            if answer.status != 404:  # noqa: PLR2004 - the status that is asked for
                fail(f"{suffix} answers with {answer.status}, but {name} is not listed.", answer)


@check("extensions-ignored", EXTENSIONS, "Parameters of what is not listed are passed over.")
def _ignored(subject: Subject) -> None:
    partition = subject.partitions()[0]
    for name, extra in (
        ("stop", ("stop", "")),
        ("wait", ("wait", "x")),
        ("event-types", ("event-types", ";")),
    ):
        if name not in subject.extensions:
            answer = subject.ask(partition, FIRST, [extra, ("pagesizehint", "1")])
            if not answer.ok:
                fail(f"{name} is not listed, and was answered with {answer.status}.", answer)


@check("discovery-again", TOKEN, "Discovery answers the same while the layout is the same.")
def _again(subject: Subject) -> None:
    for _ in range(2):
        before, token = subject.document().get("partitions"), subject.token
        answer = subject.discovery(again=True)
        if subject.token != token:
            continue
        if subject.document().get("partitions") != before:
            fail("The layout is another, but the token is the same.", answer)
        return
    skip("The token changed while it was looked at.")


def _entries(subject: Subject) -> list[dict[str, Any]]:
    listed = subject.document().get("partitions")
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        fail("partitions is not a list of objects.", subject.discovery())
    return listed


def _parent(entry: dict[str, Any]) -> str | None:
    parent = entry.get("startsAfterPartition")
    return None if parent is None else str(parent)


def _expect_id(subject: Subject, member: str, value: Any) -> None:
    answer = subject.discovery()
    if not isinstance(value, str):
        fail(f"{member} holds {value!r}, which is not a string.", answer)
    if not _ID.fullmatch(value):
        fail(f"{member} holds {value!r}, which is not a whole number in digits.", answer)
    if int(value) > HIGHEST_PARTITION:
        fail(f"{member} holds {value}; the highest is {HIGHEST_PARTITION}.", answer)
