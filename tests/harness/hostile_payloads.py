"""Payloads that break readers, and what has to become of each: exactly itself, or an error.

Floats are exact in `raw`; as Python's data they are the nearest number there is, as in any
reader that uses binary floating point.
"""

from dataclasses import dataclass
from typing import Any

__all__ = ["BODIES", "LINES", "VALUES", "Body", "Line", "Value"]

UNDECODED = object()
"""Stands for data that Python cannot hold exactly: `data` is an error, and `raw` is exact."""

REFUSED = object()
"""Stands for a value that is no JSON: its line is an error."""

KIBIBYTES = 64 * 1024
DEPTH = 100_000


@dataclass(frozen=True)
class Value:
    """Hold the text of an event's data, and what it is in Python."""

    name: str
    text: bytes
    data: Any


@dataclass(frozen=True)
class Line:
    """Hold a line that stands before a checkpoint, and the events it brings; None for an error."""

    name: str
    text: bytes
    events: list[bytes] | None


@dataclass(frozen=True)
class Body:
    """Hold a page, with its events, its cursor and whether it is caught up.

    Attributes:
        cursor: None where the page is cut, REFUSED where it is an error.
    """

    name: str
    text: bytes
    events: list[bytes]
    cursor: Any
    caught_up: bool = False


def _nested(opening: bytes, inner: bytes, closing: bytes, depth: int) -> bytes:
    return opening * depth + inner + closing * depth


def _of_length(length: int) -> bytes:
    """A string that makes its line so many bytes long."""
    return b'"' + b"x" * (length - len(b'{"data":""}')) + b'"'


VALUES = [
    Value("NaN", b"NaN", REFUSED),
    Value("Infinity", b"Infinity", REFUSED),
    Value("minus Infinity", b"-Infinity", REFUSED),
    Value("number out of range", b"1e400", UNDECODED),
    Value("negative number out of range", b"-1e400", UNDECODED),
    Value("number next to zero", b"1e-400", 0.0),
    Value("2 to the power of 53, plus 1", b"9007199254740993", 2**53 + 1),
    Value("2 to the power of 63", b"9223372036854775808", 2**63),
    Value("2 to the power of 64", b"18446744073709551616", 2**64),
    Value("30 digits", b"9" * 30, int("9" * 30)),
    Value("5,000 digits", b"9" * 5000, UNDECODED),
    Value("5,000 decimals", b"0." + b"1" * 5000, float("0." + "1" * 5000)),
    Value("minus zero", b"-0", 0),
    Value("minus zero, as a float", b"-0.0", -0.0),
    Value("exponent in capitals", b"1E+2", 100.0),
    Value("leading zero", b"007", REFUSED),
    Value("plus sign", b"+1", REFUSED),
    Value("hexadecimal", b"0x10", REFUSED),
    Value("bare point", b"1.", REFUSED),
    Value("underscore", b"1_000", REFUSED),
    Value("digits of elsewhere", "\u0661".encode(), REFUSED),
    Value("name twice", b'{"a":1,"a":2}', {"a": 2}),
    Value("empty name", b'{"":{"":1}}', {"": {"": 1}}),
    Value("name of 100,000 characters", b'{"%b":1}' % (b"k" * DEPTH), {"k" * DEPTH: 1}),
    Value("names of the protocol", b'{"cursor":"z","data":{"cursor":"y"}}', None),
    Value("line in a string", b'"{\\"cursor\\":\\"z\\"}\\n"', '{"cursor":"z"}\n'),
    Value("byte that is no UTF-8", b'"\xff"', REFUSED),
    Value("overlong UTF-8", b'"\xc0\xaf"', REFUSED),
    Value("overlong NUL", b'"\xc0\x80"', REFUSED),
    Value("surrogate in UTF-8", b'"\xed\xa0\x80"', REFUSED),
    Value("UTF-8 above U+10FFFF", b'"\xf4\x90\x80\x80"', REFUSED),
    Value("UTF-8 that is cut", b'"\xe2\x80"', REFUSED),
    Value("lone high surrogate", b'"\\ud800"', REFUSED),
    Value("lone low surrogate", b'"\\udc00"', REFUSED),
    Value("surrogates the wrong way round", b'"\\udc00\\ud800"', REFUSED),
    Value("pair of surrogates", b'"\\ud83d\\ude00"', "😀"),
    Value("U+0000, escaped", b'"\\u0000"', "\x00"),
    Value("U+0000, raw", b'"\x00"', REFUSED),
    Value("tab, raw", b'"\t"', REFUSED),
    Value("carriage return, raw", b'"\r"', REFUSED),
    Value("U+007F", b'"\x7f"', "\x7f"),
    Value("U+0085", '"\u0085"'.encode(), "\u0085"),
    Value("U+2028 and U+2029", '"\u2028\u2029"'.encode(), "\u2028\u2029"),
    Value("U+2028 between values", "[1,\u20282]".encode(), REFUSED),
    Value("no-break space between values", "[1,\u00a02]".encode(), REFUSED),
    Value("U+FEFF in a string", '"\ufeff"'.encode(), "\ufeff"),
    Value("no characters", '"\uffff\U0010ffff"'.encode(), "\uffff\U0010ffff"),
    Value("text that is not normalised", '"e\u0301é"'.encode(), "e\u0301é"),
    Value("slash, escaped", b'"\\/"', "/"),
    Value("escape that is none", b'"\\x41"', REFUSED),
    Value("escape that is cut", b'"\\u12"', REFUSED),
    Value("100 levels", _nested(b"[", b"", b"]", 100), None),
    Value("5,000 levels", _nested(b"[", b"1", b"]", 5000), REFUSED),
    Value("100,000 levels of lists", _nested(b"[", b"1", b"]", DEPTH), REFUSED),
    Value("100,000 levels of objects", _nested(b'{"a":', b"1", b"}", DEPTH), REFUSED),
    Value("list that never ends", b"[" * DEPTH, REFUSED),
    Value("line of 64 KiB less 1", _of_length(KIBIBYTES - 1), None),
    Value("line of 64 KiB", _of_length(KIBIBYTES), None),
    Value("line of 64 KiB and 1", _of_length(KIBIBYTES + 1), None),
    Value("line of 1 MiB", _of_length(16 * KIBIBYTES), None),
    Value("white space of all kinds", b' \t{ "a"\r:\t[ 1 , 2 ] } ', {"a": [1, 2]}),
    Value("vertical tab", b"[1,\x0b2]", REFUSED),
    Value("null", b"null", None),
    Value("empty object", b"{}", {}),
    Value("comment", b"1/*1*/", REFUSED),
    Value("trailing comma", b"[1,]", REFUSED),
    Value("single quotes", b"'a'", REFUSED),
    Value("two values", b"1 2", REFUSED),
    Value("newline between values", b"[1,\n2]", REFUSED),
    Value("nothing", b"", REFUSED),
]

LINES = [
    Line("byte order mark", b'\xef\xbb\xbf{"data":1}', None),
    Line("UTF-16", '{"data":1}'.encode("utf-16"), None),
    Line("CR LF", b'{"data":1}\r', [b"1"]),
    Line("CR between lines", b'{"data":1}\r{"data":2}', None),
    Line("U+2028 between lines", '{"data":1}\u2028{"data":2}'.encode(), None),
    Line("white space", b'\t{ \t"data" :\t1 } \r', [b"1"]),
    Line("blank lines", b"\n\r\n \t\n", []),
    Line("form feed", b"\x0c", None),
    Line("NUL behind", b'{"data":1}\x00', None),
    Line("data twice", b'{"data":1,"data":2}', [b"2"]),
    Line("name of data escaped", b'{"d\\u0061ta":1}', [b"1"]),
    Line("data in capitals", b'{"DATA":1,"Data":2}', []),
    Line("data deeper", b'{"newer":{"data":1,"cursor":"z"}}', []),
    Line("cursor that is a number", b'{"cursor":7}', None),
    Line("cursor that is a list", b'{"cursor":["a"]}', None),
    Line("cursor that is an object", b'{"cursor":{}}', None),
    Line("cursor that is true", b'{"cursor":true}', None),
    Line("cursor that is null", b'{"cursor":null,"data":1}', [b"1"]),
    Line("cursor that is empty", b'{"cursor":"","data":1}', [b"1"]),
    Line("cursor that is _first", b'{"cursor":"_first"}', None),
    Line("cursor that is _last", b'{"cursor":"_last"}', None),
    Line("cursor with a newline", b'{"cursor":"a\\nb"}', None),
    Line("cursor outside of ASCII", '{"cursor":"å"}'.encode(), None),
    Line("cursor of 4,097 characters", b'{"cursor":"%b"}' % (b"c" * 4097), None),
    Line("headers that are no texts", b'{"data":1,"headers":{"a":1}}', None),
    Line("another partition", b'{"data":1,"partition":1}', None),
    Line("partition that is a float", b'{"data":1,"partition":0.0}', None),
    Line("list", b'[{"data":1}]', None),
    Line("text", b"internal server error", None),
    Line("markup", b"<html>", None),
    Line("field of bytes that are no UTF-8", b'{"data":1,"newer":"\xff"}', None),
    Line("field that is NaN", b'{"data":1,"newer":NaN}', None),
]

_EVENT = b'{"data":1}\n'

BODIES = [
    Body("nothing", b"", [], None),
    Body("newlines", b"\n" * 1000, [], None),
    Body("tail without newline", _EVENT + b'{"cursor":"a"}', [b"1"], "a"),
    Body("tail that is cut", _EVENT + b'{"cursor":"a"}\n{"cursor":"b"', [b"1"], "a"),
    Body("tail that is an event", b'{"cursor":"a","caughtUp":true}\n' + _EVENT, [], "a"),
    Body("several checkpoints", b'{"cursor":"a"}\n' + _EVENT + b'{"cursor":"b"}\n', [b"1"], "b"),
    Body("checkpoint again", b'{"cursor":"a"}\n{"cursor":"a"}\n', [], "a"),
    Body("cursor twice in a line", _EVENT + b'{"cursor":"a","cursor":"b"}\n', [b"1"], "b"),
    Body("data and cursor in a line", b'{"cursor":"a","data":2}\n', [b"2"], "a"),
    Body("caughtUp", b'{"cursor":"a","caughtUp":true}\n', [], "a", caught_up=True),
    Body("caughtUp that is a text", b'{"cursor":"a","caughtUp":"true"}\n', [], "a"),
    Body("caughtUp that is a number", b'{"cursor":"a","caughtUp":1}\n', [], "a"),
    Body("caughtUp that is a list", b'{"cursor":"a","caughtUp":[true]}\n', [], "a"),
    Body("caughtUp that is huge", b'{"cursor":"a","caughtUp":%b}\n' % (b"9" * 5000), [], "a"),
    Body("caughtUp twice", b'{"cursor":"a","caughtUp":true,"caughtUp":false}\n', [], "a"),
    Body(
        "caughtUp among white space",
        b'{"cursor":"a","caughtUp" : \ttrue}\r\n',
        [],
        "a",
        caught_up=True,
    ),
    Body("longest cursor", b'{"cursor":"%b"}\n' % (b"c" * 4096), [], "c" * 4096),
    Body("cursor that is escaped", b'{"cursor":"\\u0061\\/"}\n', [], "a/"),
    Body("error behind a checkpoint", b'{"cursor":"a"}\noops\n', [], REFUSED),
]
