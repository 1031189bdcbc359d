"""Checks of the extension event-types."""

from collections import Counter

from zeroeventhub.conformance.answer import SentEvent
from zeroeventhub.conformance.checks.parameters import BAD_REQUEST, refused
from zeroeventhub.conformance.finding import fail, skip
from zeroeventhub.conformance.registry import check
from zeroeventhub.conformance.sections import EVENT_TYPES as SECTION
from zeroeventhub.conformance.sections import EXTENSIONS
from zeroeventhub.conformance.subject import Subject
from zeroeventhub.conformance.walk import Walk
from zeroeventhub.protocol import EVENT_TYPES, FIRST

_NOBODY = "conformance.no.such.type"
_ONLY = "event-types"
_SKIP = "skip-event-types"
_MOST_PAGES = 60


@check(
    "event-types-unlisted",
    EXTENSIONS,
    "A feed that does not list event-types sends events of all types.",
)
def _unlisted(subject: Subject) -> None:
    if EVENT_TYPES in subject.extensions:
        skip("The feed lists event-types.")
    partition, known = subject.sample(1)
    expected = known.events[:25]
    _expect(subject, partition, expected, (_ONLY, _NOBODY), "of a feed that lists no event-types")


@check(
    "event-types-both",
    SECTION,
    "event-types and skip-event-types at once are 400.",
    extension=EVENT_TYPES,
)
def _both(subject: Subject) -> None:
    extra = [(_ONLY, "a"), (_SKIP, "b")]
    answer = subject.ask(subject.partitions()[0], FIRST, extra)
    if answer.status != BAD_REQUEST:
        fail(f"Both at once were answered with status {answer.status}.", answer)


@check("event-types", SECTION, "Only events of the types asked for come.", extension=EVENT_TYPES)
def _only(subject: Subject) -> None:
    partition, known = subject.sample(1)
    page = subject.page(partition, FIRST, [(_ONLY, _NOBODY)])
    if page.events:
        fail("An event came, though its type was not asked for.", subject.probe.last)
    for name in _types(known):
        expected = [event for event in known.events if _type(event) == name]
        _expect(subject, partition, expected, (_ONLY, f";{name};{_NOBODY}"), f"of type {name}")


@check(
    "event-types-skip", SECTION, "Events of the types to skip do not come.", extension=EVENT_TYPES
)
def _skip(subject: Subject) -> None:
    partition, known = subject.sample(1)
    _expect(subject, partition, known.events[:200], (_SKIP, _NOBODY), "with nothing to skip")
    for name in _types(known):
        expected = [event for event in known.events if _type(event) != name]
        if expected:
            _expect(subject, partition, expected, (_SKIP, name), f"without type {name}")


@check(
    "event-types-case", SECTION, "The case of a type's name does not matter.", extension=EVENT_TYPES
)
def _case(subject: Subject) -> None:
    partition, known = subject.sample(1)
    names = _types(known)
    if not names:
        skip("The events do not tell their type (CloudEvents do).")
    for name in names:
        expected = [event for event in known.events if _type(event) == name]
        _expect(subject, partition, expected, (_ONLY, name.swapcase()), f"of {name.swapcase()}")


@check(
    "event-types-checkpoint",
    SECTION,
    "The checkpoint moves on over events that are left out.",
    extension=EVENT_TYPES,
)
def _checkpoint(subject: Subject) -> None:
    partition, known = subject.sample(1)
    cursor = FIRST
    for _ in range(_MOST_PAGES):
        page = subject.page(partition, cursor, [(_ONLY, _NOBODY)])
        answer = subject.probe.last
        before, cursor = cursor, page.marks[-1].cursor
        if before == cursor or page.marks[-1].caught_up is True:
            break
    following = subject.page(partition, cursor, [("pagesizehint", "1")])
    # What was there when the walk was made lies behind, as far as the walk went.
    unique = len({event.identity for event in known.events}) == len(known.events)
    if following.events and unique:
        old = {event.identity for event in known.events}
        if following.events[0].identity in old:
            fail("With every event left out the checkpoint stays before them.", answer)


@check(
    "event-types-empty",
    SECTION,
    "A list without a type is as if it were missing.",
    extension=EVENT_TYPES,
)
def _empty(subject: Subject) -> None:
    partition, known = subject.sample(1)
    for parameter in ((_ONLY, ""), (_SKIP, ";;")):
        _expect(subject, partition, known.events[:25], parameter, "with a list without a type")


@check(
    "event-types-malformed",
    SECTION,
    "A list of too many types, or of what is no type's name, is 400.",
    extension=EVENT_TYPES,
)
def _malformed(subject: Subject) -> None:
    common = subject.parameters(subject.partitions()[0], FIRST)
    many = ";".join(f"conformance{number}" for number in range(101))
    for name in (_ONLY, _SKIP):
        for value in (many, "a" * 300, "\u00e9", "a.*"):
            refused(subject, [*common, (name, value)], f"{name}={value[:9]}")


def _expect(
    subject: Subject,
    partition: int,
    expected: list[SentEvent],
    parameter: tuple[str, str],
    what: str,
) -> None:
    extra = [parameter, ("pagesizehint", "100")]
    events = subject.read(partition, FIRST, len(expected), extra)
    subject.expect_same(expected, events, what)


def _types(known: Walk) -> list[str]:
    """Return the most frequent types, the rarest of them last."""
    names = Counter(name for event in known.events if (name := _type(event)) is not None)
    return [name for name, _ in names.most_common(3)]


def _type(event: SentEvent) -> str | None:
    """Return the type of a CloudEvent; what other data means is not known here."""
    data = event.data
    if not isinstance(data, dict) or "specversion" not in data:
        return None
    name = data.get("type")
    return name if isinstance(name, str) else None
