"""Reports of results: lines for people, JSON and JUnit for machines."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from zeroeventhub.conformance.answer import Outcome
from zeroeventhub.conformance.check import Result
from zeroeventhub.errors import printable

SHOWN_BYTES = 160
SHOWN_TARGET = 300
_SHOWN_HEADERS = ("content-type", "content-length", "cache-control", "etag", "retry-after")


def first_bytes(body: bytes) -> str:
    """Show the first bytes of a body: printable ASCII as it is, the rest escaped."""
    shown = printable(body[:SHOWN_BYTES].decode("ascii", "backslashreplace"))
    return shown + ("…" if len(body) > SHOWN_BYTES else "")


def as_lines(result: Result) -> Iterable[str]:
    """Yield the lines of a result; one line if nothing is wrong."""
    reason = f"  {result.reason}" if result.outcome is Outcome.SKIP else ""
    yield f"{result.outcome:4}  {result.name}{reason}"
    if result.outcome not in {Outcome.FAIL, Outcome.NOTE}:
        return
    yield f"      found  {result.reason}"
    yield f"      asked  {result.sentence} (section {result.section})"
    answer = result.answer
    if answer is not None:
        more = "…" if len(answer.target) > SHOWN_TARGET else ""
        yield f"      sent   {answer.method} {answer.target[:SHOWN_TARGET]}{more}"
        if answer.status:
            kind = answer.headers.get("content-type", "no content type")
            size = f"{len(answer.body):,} bytes"
            yield f"      came   {answer.status}, {kind}, {size}: {first_bytes(answer.body)}"


def summary(results: Sequence[Result]) -> str:
    """Return the numbers of outcomes in a line."""
    counts = Counter(result.outcome for result in results)
    words = {"pass": "passed", "fail": "failed", "note": "with a note", "skip": "skipped"}
    return ", ".join(f"{counts[outcome]} {words[outcome]}" for outcome in Outcome)


def as_document(url: str, results: Sequence[Result]) -> dict[str, Any]:
    """Return the results as a JSON document."""
    counts = Counter(result.outcome for result in results)
    return {
        "url": url,
        **{outcome.value: counts[outcome] for outcome in Outcome},
        "checks": [_as_entry(result) for result in results],
    }


def _as_entry(result: Result) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": result.name,
        "section": result.section,
        "sentence": result.sentence,
        "outcome": result.outcome.value,
        "reason": result.reason,
        "seconds": round(result.seconds, 3),
    }
    answer = result.answer
    if answer is not None:
        entry["request"] = {"method": answer.method, "target": answer.target}
        headers = {name: answer.headers[name] for name in _SHOWN_HEADERS if name in answer.headers}
        if answer.status:
            body = first_bytes(answer.body)
            entry["answer"] = {"status": answer.status, "headers": headers, "first_bytes": body}
    return entry


# Characters that XML 1.0 cannot hold, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_junit(url: str, results: Sequence[Result]) -> bytes:
    """Write the results as a JUnit test suite, with a test case for each check."""
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
    details = _clean("\n".join(as_lines(result)))
    message = {"message": _clean(result.reason)}
    match result.outcome:
        case Outcome.FAIL:
            SubElement(case, "failure", {**message, "type": "conformance"}).text = details
        case Outcome.SKIP:
            SubElement(case, "skipped", message)
        case Outcome.NOTE:
            SubElement(case, "system-out").text = details
        case Outcome.PASS:
            pass


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
