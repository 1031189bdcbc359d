"""Tell continuous integration what the checks found, in the XML of JUnit."""

import re
from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from zeroeventhub.conformance.finding import Outcome, Result
from zeroeventhub.conformance.report import as_lines

__all__ = ["as_junit"]

# What XML 1.0 cannot hold, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_junit(url: str, results: Sequence[Result]) -> bytes:
    """Write the results as a test suite, a test case a check.

    Args:
        url: the feed's address, without what is secret in it.
        results: what was found.
    """
    failed = sum(result.outcome is Outcome.FAIL for result in results)
    skipped = sum(result.outcome is Outcome.SKIP for result in results)
    counts = {
        "tests": str(len(results)),
        "failures": str(failed),
        "errors": "0",
        "skipped": str(skipped),
        "time": f"{sum(result.seconds for result in results):.3f}",
    }
    suites = Element("testsuites", counts)
    suite = SubElement(suites, "testsuite", {"name": f"conformance {_clean(url)}", **counts})
    for result in results:
        _add(suite, result)
    indent(suites)
    written: bytes = tostring(suites, "utf-8", xml_declaration=True)
    return written + b"\n"


def _add(suite: Element, result: Result) -> None:
    attributes = {
        "classname": f"conformance.section-{result.section.replace('.', '-')}",
        "name": result.name,
        "time": f"{result.seconds:.3f}",
    }
    case = SubElement(suite, "testcase", attributes)
    told = _clean("\n".join(as_lines(result)))
    message = {"message": _clean(result.reason)}
    match result.outcome:
        case Outcome.FAIL:
            SubElement(case, "failure", {**message, "type": "conformance"}).text = told
        case Outcome.SKIP:
            SubElement(case, "skipped", message)
        case Outcome.NOTE:
            SubElement(case, "system-out").text = told
        case Outcome.PASS:
            pass


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
