"""Checks of discovery: the document, the partition layout, and its token."""

import re
from typing import Any, NoReturn

from zeroeventhub.conformance.answer import PageText, fail, note, skip
from zeroeventhub.conformance.check import check
from zeroeventhub.conformance.subject import CONFLICT, Subject, expect
from zeroeventhub.extensions import (
    CURSOR_OF_COUNT,
    EVENT_TYPES,
    EXTENSIONS,
    REQUIRED,
    SPLITS,
    STOP,
    WAIT,
)
from zeroeventhub.protocol import FIRST, HIGHEST_PARTITION

_TOKEN = re.compile("[!-~]{1,256}")
_ID = re.compile("0|[1-9][0-9]{0,4}")
_TRIES = 3

_SAMPLES = {
    "moment": "2020-01-01T00:00:00Z",
    "number": "2",
    "cursor": FIRST,
    "text": "conformance",
    "name": "conformance",
}

EXTENSION_REQUESTS = {
    name: {
        parameter.name: _SAMPLES[parameter.kind]
        for parameter in extension.parameters
        if parameter.default is REQUIRED and parameter.kind != "partition"
    }
    for name, extension in EXTENSIONS.items()
    if extension.path and extension.verb == "GET"
}
"""By extension, the required parameters of a request to its own path, but token and partition."""


def _fail(subject: Subject, reason: str) -> NoReturn:
    fail(reason, subject.discovery())


@check("3", "A GET of the feed's address answers 200 with JSON.")
def discovery_document(subject: Subject) -> None:
    answer = subject.discovery()
    if not answer.ok:
        _fail(subject, f"Discovery answered with status {answer.status}.")
    if not isinstance(answer.document, dict):
        _fail(subject, "The document is not a JSON object.")
    missing = {"token", "partitions"} - set(subject.document())
    if missing:
        _fail(subject, f"The document has no {' and no '.join(sorted(missing))}.")
    _entries(subject)


@check("2.2", "The discovery document is application/json.")
def discovery_media_type(subject: Subject) -> None:
    answer = subject.discovery()
    if answer.ok and answer.media_type != "application/json":
        _fail(subject, f"It came as {answer.media_type}.")


@check("3", "The token is a string of 1 to 256 printable characters.")
def discovery_token(subject: Subject) -> None:
    token = subject.document().get("token")
    if not isinstance(token, str):
        _fail(subject, f"The token is {token!r}, which is not a string.")
    elif not _TOKEN.fullmatch(token):
        _fail(subject, "The token is not 1 to 256 characters of printable ASCII.")


@check("3", "exactlyOnce says whether events may come twice.")
def exactly_once(subject: Subject) -> None:
    document = subject.document()
    if "exactlyOnce" not in document:
        note("exactlyOnce is missing; consumers take it for false.", subject.discovery())
    if not isinstance(document["exactlyOnce"], bool):
        _fail(subject, "exactlyOnce is neither true nor false.")


@check("3", "Partition ids are strings of whole numbers, 0 to 32767, each once.")
def partition_ids(subject: Subject) -> None:
    seen = set()
    for entry in _entries(subject):
        partition = entry.get("id")
        _expect_id(subject, "id", partition)
        if partition in seen:
            _fail(subject, f"Partition {partition} is listed twice.")
        seen.add(partition)


@check("3", "startsAfterPartition and cursorFromPartitions hold ids: strings.")
def layout_ids(subject: Subject) -> None:
    for entry in _entries(subject):
        if not isinstance(entry.get("closed"), bool | None):
            _fail(subject, "closed is neither true nor false.")
        if entry.get("startsAfterPartition") is not None:
            _expect_id(subject, "startsAfterPartition", entry["startsAfterPartition"])
        ancestors = entry.get("cursorFromPartitions") or []
        if not isinstance(ancestors, list):
            _fail(subject, "cursorFromPartitions is not a list.")
        for ancestor in ancestors:
            _expect_id(subject, "cursorFromPartitions", ancestor)


@check("8.3", "A partition starts after a closed one, and never after itself.")
def layout_order(subject: Subject) -> None:
    known = {str(entry.get("id")): entry for entry in _entries(subject)}
    for name, entry in known.items():
        seen = set()
        child, parent = name, _parent(entry)
        while parent is not None:
            if parent in seen or parent == name:
                _fail(subject, f"Partition {name} starts after itself.")
            if parent not in known:
                break
            if known[parent].get("closed") is not True:
                _fail(
                    subject,
                    f"Partition {child} starts after partition {parent}, which is not closed.",
                )
            seen.add(parent)
            child, parent = parent, _parent(known[parent])


@check("3", "extensions, if present, is a sorted list of names.")
def extensions(subject: Subject) -> None:
    listed = subject.document().get("extensions")
    if listed is None:
        return
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        _fail(subject, "extensions is not a list of strings.")
    if listed != sorted(set(listed)):
        _fail(subject, "extensions is not sorted, or names one twice.")
    for name in (SPLITS, CURSOR_OF_COUNT):
        if name in listed and STOP not in listed:
            _fail(subject, f"{name} is listed without stop.")


@check("9.1", "The path of an extension that a feed does not list is 404.")
def extensions_absent(subject: Subject) -> None:
    place = subject.place()
    for name, given in EXTENSION_REQUESTS.items():
        if name not in subject.extensions:
            suffix = f"/{EXTENSIONS[name].path}"
            answer = subject.probe.ask(suffix, [*place, *given.items()])
            expect(answer, f"{suffix} of {name}, which is not listed,", 404)


@check("9.1", "Parameters of extensions that are not listed are ignored.")
def extensions_ignored(subject: Subject) -> None:
    partition = subject.partitions()[0]
    for name, value in ((STOP, ""), (WAIT, "x"), (EVENT_TYPES, ";")):
        if name not in subject.extensions:
            answer = subject.ask(partition, FIRST, [(name, value), ("pagesizehint", "1")])
            expect(answer, f"{name}, which is not listed,")


@check("20", "A request of version 1 is answered with its page, or with 400.")
def version_1(subject: Subject) -> None:
    partitions = subject.partitions()
    place = [("n", str(len(partitions))), (f"cursor{partitions[0]}", FIRST)]
    answer = expect(subject.probe.ask("", place), "A request with n", 200, 400)
    if answer.ok and not PageText.of(answer.body).checkpoints:
        fail("A request with n was answered as if it had none: clients of version 1 wait for ever.")


@check("8.1", "Discovery answers the same while the layout is the same.")
def discovery_again(subject: Subject) -> None:
    for _ in range(2):
        before, token = subject.document().get("partitions"), subject.token
        subject.discovery(again=True)
        if subject.token != token:
            continue
        if subject.document().get("partitions") != before:
            fail("The layout is another, but the token is the same.")
        return
    skip("The token changed during the check.")


@check("4", "The token that discovery gives is the one that events take.")
def token_accepted(subject: Subject) -> None:
    for _ in range(_TRIES):
        subject.discovery(again=True)
        answer = subject.send(subject.parameters())
        if answer.status != CONFLICT:
            break
    else:
        fail("The newest token was refused again and again.")
    expect(answer, "A good request")


@check("4", "A token that is not the feed's is answered with 409.")
def token_unknown(subject: Subject) -> None:
    _, *rest = subject.parameters()
    for token in (f"{subject.token}-conformance", "conformance"):
        expect(subject.send([("token", token), *rest]), "An unknown token", 409)


@check("8.1", "All partitions take the same token.")
def token_partitions(subject: Subject) -> None:
    for partition in subject.partitions()[:50]:
        answer = subject.ask(partition, FIRST, [("pagesizehint", "1")])
        if answer.status == CONFLICT:
            fail(f"Partition {partition} refuses the token of discovery.")


@check("4", "A request without a token is answered with 400.")
def token_missing(subject: Subject) -> None:
    expect(subject.send(subject.parameters()[1:]), "A request without token", 400)


@check("8.1", "A token is refused as soon as discovery gives another.")
def token_rotation(_subject: Subject) -> None:
    skip("The check would need a change of the layout, and makes none.")


def _entries(subject: Subject) -> list[dict[str, Any]]:
    listed = subject.document().get("partitions")
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        fail("partitions is not a list of objects.", subject.discovery())
    return listed


def _parent(entry: dict[str, Any]) -> str | None:
    parent = entry.get("startsAfterPartition")
    return None if parent is None else str(parent)


def _expect_id(subject: Subject, member: str, value: Any) -> None:
    if not isinstance(value, str):
        _fail(subject, f"{member} holds {value!r}, which is not a string.")
    elif not _ID.fullmatch(value):
        _fail(subject, f"{member} holds {value!r}, which is not a whole number in digits.")
    elif int(value) > HIGHEST_PARTITION:
        _fail(subject, f"{member} holds {value}; the highest is {HIGHEST_PARTITION}.")
