"""Checks of the extension key-history."""

import json
from decimal import Decimal
from typing import Any

import msgspec

from zeroeventhub.conformance.checks.parameters import refused
from zeroeventhub.conformance.finding import fail, skip
from zeroeventhub.conformance.registry import check
from zeroeventhub.conformance.sections import KEY_HISTORY as SECTION
from zeroeventhub.conformance.subject import Subject
from zeroeventhub.protocol import KEY_HISTORY

_SUFFIX = "/key-history"
_MOST = 5
"""How many events of a key are read one by one."""


class _Entry(msgspec.Struct, frozen=True):
    """Hold an event and its version."""

    version: int
    data: msgspec.Raw

    @property
    def content(self) -> Any:
        """The event, decoded as those of pages are, so that numbers are exact."""
        return json.loads(bytes(self.data), parse_float=Decimal, parse_int=Decimal)

    @property
    def identity(self) -> str:
        """The same for the same event, as that of one of a page."""
        return repr(self.content)


class _History(msgspec.Struct, frozen=True):
    """Hold what an answer says."""

    events: list[_Entry]
    more: Any = None


def _ask(subject: Subject, key: str, after: int = 0, hint: int | None = None) -> _History:
    parameters = [("key", key), ("after-version", str(after))]
    if hint is not None:
        parameters.append(("pagesizehint", str(hint)))
    answer = subject.probe.ask(_SUFFIX, parameters)
    if not answer.ok:
        fail(f"The history of a key was answered with status {answer.status}.", answer)
    if answer.media_type != "application/json":
        fail(f"The history came as {answer.media_type or 'nothing in particular'}.", answer)
    try:
        found = msgspec.json.decode(answer.body, type=_History)
    except (msgspec.DecodeError, RecursionError):
        fail("The answer holds no events with versions.", answer)
    versions = [after, *(entry.version for entry in found.events)]
    if versions != sorted(set(versions)):
        fail("The versions do not rise from the one that was asked for.", answer)
    if found.more is not None and (found.more is not True or not found.events):
        fail("more is there, and is not true, or there is no event.", answer)
    return found


def _key(subject: Subject) -> tuple[str, list[str]]:
    """Return a key that has versions, and those of its events that pages have shown."""
    _, known = subject.sample(1)
    keys: dict[str, list[str]] = {}
    for event in known.events:
        key = event.data.get("partitionkey") if isinstance(event.data, dict) else None
        if isinstance(key, str):
            keys.setdefault(key, []).append(event.identity)
    most = sorted(keys, key=lambda key: -len(keys[key]))[:_MOST]
    found = next((key for key in most if _ask(subject, key).events), None)
    if found is None:
        skip("It takes events with a partitionkey, and versions of it, to see.")
    return found, keys[found]


@check(
    "key-history",
    SECTION,
    "The events of a key are those of its pages, in rising versions.",
    extension=KEY_HISTORY,
)
def _same(subject: Subject) -> None:
    key, shown = _key(subject)
    history = _ask(subject, key)
    answer = subject.probe.last
    contents = [entry.content for entry in history.events]
    if any(not isinstance(one, dict) or one.get("partitionkey") != key for one in contents):
        fail("There is an event of another key.", answer)
    # Pages may have others beside them that have no version, and not yet those that are new.
    found = [entry.identity for entry in history.events]
    both = [one for one in found if one in shown]
    if not both or both != [one for one in shown if one in found]:
        fail("The events of the key are not those of its pages, in their order.", answer)


@check(
    "key-history-pages",
    SECTION,
    "Read one by one, the events of a key are the same.",
    extension=KEY_HISTORY,
)
def _pages(subject: Subject) -> None:
    key, _ = _key(subject)
    whole = _ask(subject, key)
    after = 0
    for expected in whole.events[:_MOST]:
        one = _ask(subject, key, after, hint=1)
        answer = subject.probe.last
        if [(entry.version, entry.identity) for entry in one.events] != [
            (expected.version, expected.identity)
        ]:
            fail(
                f"One event was asked for behind version {after}, and another answer came.", answer
            )
        if expected is not whole.events[-1] and one.more is not True:
            fail("There are more events, and the answer does not say so.", answer)
        after = expected.version


@check(
    "key-history-nothing",
    SECTION,
    "Of a key that nobody has, and behind the last version, there are no events.",
    extension=KEY_HISTORY,
)
def _nothing(subject: Subject) -> None:
    for name in ("conformance-no-such-key", "", "' OR 1=1 --", "\u2028"):
        if _ask(subject, name).events:
            fail(f"There are events of the key {name!r}.", subject.probe.last)
    if _ask(subject, _key(subject)[0], 10**15).events:
        fail("There are events behind a version that nobody has given.", subject.probe.last)


@check(
    "key-history-malformed",
    SECTION,
    "A request without a key, or behind what is no version, is 400.",
    extension=KEY_HISTORY,
)
def _malformed(subject: Subject) -> None:
    refused(subject, [], "A request without a key", suffix=_SUFFIX)
    refused(subject, [("key", "a"), ("key", "b")], "A request with two keys", suffix=_SUFFIX)
    for version in ("-1", "x", "", "1.5"):
        parameters = [("key", "a"), ("after-version", version)]
        refused(subject, parameters, f"after-version={version!r}", suffix=_SUFFIX)
