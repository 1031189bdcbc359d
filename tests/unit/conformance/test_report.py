"""What the conformance kit prints and writes."""

from xml.etree import ElementTree as ET

import httpx

from zeroeventhub.conformance import Outcome, Result
from zeroeventhub.conformance.answer import Answer
from zeroeventhub.conformance.report import as_junit, first_bytes

NASTY = bytes(range(256)) + "\ufffe\U0001f600".encode()


def result(outcome, reason="\x00\x1b[31m\ud800 <&\"']]>", body=NASTY):
    """Make a result that holds everything that XML and terminals do not like."""
    answer = Answer("GET", "/feed?x=%00", 200, httpx.Headers({"content-type": "x"}), body)
    return Result("name", "5.2", "What is asked for.", outcome, reason, answer, 0.5)


def test_junit_is_xml_whatever_came():
    """Control characters, markup and half pairs of surrogates do not break the file."""
    written = as_junit("http://host/\x01", [result(outcome) for outcome in Outcome])
    suite = ET.fromstring(written).find("testsuite")
    cases = suite.findall("testcase")
    tags = [[child.tag for child in case] for case in cases]
    assert tags == [[], ["system-out"], ["failure"], ["skipped"]]
    assert suite.get("tests") == "4"
    assert cases[2].find("failure").get("type") == "conformance"


def test_nothing_reaches_the_terminal_unescaped():
    """Bytes of an answer are shown in printable ASCII."""
    assert first_bytes(b"a\x1b\n\xff\xe2\x80\xa8") == "a\\x1b\\n\\xff\\xe2\\x80\\xa8"
    assert first_bytes(b"x" * 500) == "x" * 160 + "…"
