"""What the conformance kit prints, writes and documents."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import httpx
import pytest

from zeroeventhub.conformance import Outcome, Result, all_checks
from zeroeventhub.conformance.answer import Answer, PageText
from zeroeventhub.conformance.misbehaving import all_scenarios
from zeroeventhub.conformance.report import as_junit, first_bytes

ROOT = Path(__file__).parents[3]
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


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b'{"data":{}}', None),
        (b'{"data":null}', "data"),
        (b'{"data":{"a":1,"a":2}}', None),
        (b'{"data":1,"data":{}}', "twice"),
        (b'{"data":{"n":NaN}}', "constant"),
        (b'{"data":{"n":1e999,"m":' + b"9" * 5000 + b"}}", None),
        (b'{"data":"\\ud800"}', "surrogate"),
        (b'{"data":"\\ud83d\\ude00"}', None),
        (b'{"data":"\xff"}', "utf8"),
        (b'{"data":"\xe2\x80\xa8"}', None),
        (b'{"data":{},"cursor":"c"}', "both"),
        (b'{"data":{}}\r', "return"),
        (b"", "empty"),
        (b"x", "json"),
        (b"[]", "json"),
        (b'{"cursor":1}', "cursor"),
        (b'{"cursor":"_last"}', "cursor"),
        (b'{"cursor":"\\u00e9"}', "cursor"),
        (b'{"cursor":"' + b"c" * 4097 + b'"}', "cursor"),
        (b'{"cursor":null}', None),
        (b'{"cursor":"c","caughtUp":1}', "flag"),
        (b'{"cursor":"c","stopReached":false}', "flag"),
        (b'{"data":"' + b"x" * 65_525 + b'"}', "long"),
        (b'{"data":"' + b"x" * 65_524 + b'"}', None),
        (b'{"data":' + b"[" * 20_000 + b"}", "deep"),
        (b'{"something":"else"}', None),
    ],
)
def test_fault_of_a_line_is_seen(line, fault):
    """Every way in which a line can be wrong has a name, and right lines have none."""
    page = PageText.of(line + b'\n{"cursor":"end"}\n')
    assert set(page.faults) == ({fault} if fault else set())
    assert page.cursor == "end"


def test_every_section_that_is_cited_exists():
    """Checks and scenarios stand on sections that the specification has."""
    headings = re.findall(
        r"^#+ ([0-9]+(?:\.[0-9]+)?)\.? ", (ROOT / "spec/SPEC.md").read_text(), re.MULTILINE
    )
    cited = {check.section for check in all_checks().values()}
    cited |= {scenario.section for scenario in all_scenarios().values()}
    assert cited <= set(headings)


def test_documentation_lists_checks_and_scenarios():
    """The guide names exactly the checks and scenarios that there are, with their sentences."""
    guide = (ROOT / "docs/conformance.md").read_text()
    checks = {name: check for name, check in all_checks().items() if not check.v1}
    listed = re.findall(r"^\| `([^`]+)` \| ([^|]+) \| ([^|]+) \|$", guide, re.MULTILINE)
    there = [*checks.items(), *all_scenarios().items()]
    assert listed == [(name, one.section, one.sentence) for name, one in there]
    v1 = {name for name, check in all_checks().items() if check.v1}
    words = guide.partition("## In the words of version 1")[2].partition("## Scenarios")[0]
    assert set(re.findall(r"`(v1-[a-z0-9-]+)`", words)) == v1
