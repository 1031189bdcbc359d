"""What the conformance kit prints, writes and documents."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import httpx

from zeroeventhub.conformance import Outcome, Result, all_checks
from zeroeventhub.conformance.answer import Answer
from zeroeventhub.conformance.junit import as_junit
from zeroeventhub.conformance.misbehaving import all_scenarios
from zeroeventhub.conformance.report import first_bytes

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
