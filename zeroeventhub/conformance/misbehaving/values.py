"""Scenarios of what data and discovery hold: everything that JSON allows, and a little more."""

from collections.abc import Sequence

from zeroeventhub.conformance.misbehaving.scenario import (
    EVENTS,
    Reply,
    discovery,
    numbered,
    script,
    text,
)
from zeroeventhub.conformance.sections import DISCOVERY, LIMITS, LINES, SPLITTING

FIDELITY = "5.3"
_ALL = "Every event is applied once."


def _data(name: str, section: str, sentence: str, data: Sequence[str]) -> None:
    script(name, section, sentence, _ALL, events=[*numbered(0, 1), *data])


_data(
    "separators",
    SPLITTING,
    "Data holds U+2028, U+2029 and U+0085 as they are.",
    [
        text({"n": 2, "text": "a\u2028b\u2029c\u0085d"}),
        text("\u2028\u0085"),
    ],
)
_data(
    "numbers",
    FIDELITY,
    "Numbers are too large for many languages.",
    [
        '{"n":2,"big":' + "9" * 40 + ',"bigger":1e400,"exact":9007199254740993}',
        '{"n":3,"small":0.1000000000000000055511151231257827,"zero":-0.0}',
    ],
)
_data("values", LINES, "Data is of every kind.", ["null", "true", "17", '"text"', "[1,2]", '""'])
_data("nested", LIMITS, "Data is nested 90 levels deep.", ["[" * 90 + "]" * 90, EVENTS[3]])
_data(
    "long-line",
    LIMITS,
    "A line has a million bytes.",
    [text({"n": 2, "text": "x" * 1_000_000}), EVENTS[3]],
)
_data(
    "same-names",
    FIDELITY,
    "Data has a member twice, and odd names.",
    ['{"n":2,"n":3,"":0,"data":1,"cursor":"x"}'],
)
_data(
    "escapes",
    FIDELITY,
    "Strings are escaped in every way.",
    ['{"n":"\\u0041\\/\\ud83d\\ude00\\n\\u0000"}'],
)

script(
    "numbers-as-ids",
    DISCOVERY,
    "Discovery writes ids as numbers.",
    _ALL,
    greeting=discovery([{"id": 0}]),
)
script(
    "odd-extensions",
    DISCOVERY,
    "Discovery lists extensions that nobody knows.",
    _ALL,
    greeting=discovery(extensions=["x-new", 17, None, "stopp"], future={"a": 1}),
)
script(
    "number-token",
    DISCOVERY,
    "The token is a number.",
    "Ends in an error.",
    greeting=discovery(token=1),
    applied=[],
    error="protocol",
)
script(
    "not-json",
    DISCOVERY,
    "Discovery is not JSON.",
    "Ends in an error.",
    greeting=Reply(b"Hello!\n"),
    applied=[],
    error="protocol",
)
script(
    "same-id-twice",
    DISCOVERY,
    "A partition is listed twice.",
    "Ends in an error.",
    greeting=discovery([{"id": "0"}, {"id": "00"}]),
    applied=[],
    error="protocol",
)
