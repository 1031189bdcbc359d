"""Make the checks of a feed, one after the other."""

import time
from collections.abc import Collection, Iterator
from dataclasses import replace

import httpx

import zeroeventhub.conformance.checks  # noqa: F401 - registers the checks
from zeroeventhub.conformance.answer import Answer
from zeroeventhub.conformance.check import Check, Finding, Outcome, Result, all_checks, run_check
from zeroeventhub.conformance.subject import Probe, Subject
from zeroeventhub.errors import ConfigurationError, Forbidden, NotFound, Unreachable

__all__ = ["check_feed"]

LONGEST = 60.0
"""Seconds after which what is left of the checks is skipped."""

_V1_ANSWERS = {400, 422}
_NO_V2 = "The feed speaks ZeroEventHub v1 only."
_NO_V1 = "The feed does not speak ZeroEventHub v1."


def check_feed(
    url: str, http: httpx.Client, *, partitions: int | None = None, only: Collection[str] = ()
) -> Iterator[Result]:
    """Check a feed, and yield the results as they come; each fault fails one check.

    Args:
        url: the feed's address.
        http: a client with the headers that the publisher wants to see; yours to close.
        partitions: how many partitions the feed has, if it only speaks ZeroEventHub v1.
        only: names of the checks to make; none for all.

    Raises:
        ConfigurationError: the address or a name is wrong.
        Unreachable: there is no answer from the address.
        Forbidden: the feed asks for credentials.
        NotFound: there is no feed at the address.
    """
    chosen = _choose(only)
    probe = Probe(url, http)
    first = _greet(probe)
    v2 = first.ok or (first.status not in _V1_ANSWERS and partitions is None)
    if not v2 and partitions is None:
        raise ConfigurationError(
            f"{probe.address} does not answer discovery ({first.status}); if it is a feed of "
            "ZeroEventHub v1, say how many partitions it has."
        )
    # Each version has a probe of its own, and so judges its own refusals.
    subject_v1 = _v1_subject(Probe(url, http), partitions)
    probe.end = time.monotonic() + LONGEST
    if subject_v1 is not None:
        subject_v1.probe.end = probe.end
    subjects = {False: Subject(probe) if v2 else None, True: subject_v1}
    found: dict[str, str] = {}
    for check in chosen:
        subject = subjects[check.v1]
        if subject is None:
            reason = _NO_V1 if check.v1 else _NO_V2
            yield Result(check.name, check.section, check.sentence, Outcome.SKIP, reason)
            continue
        result = run_check(check, subject)
        if result.outcome is Outcome.FAIL:
            finder = found.setdefault(result.fault, check.name)
            if finder != check.name:
                seen = f"It meets the fault that {finder} has found: {result.reason}"
                result = replace(result, outcome=Outcome.SKIP, reason=seen)
        yield result


def _choose(only: Collection[str]) -> list[Check]:
    known = all_checks()
    if unknown := sorted(set(only) - set(known)):
        raise ConfigurationError(f"There is no check {unknown[0]!r}: --list shows their names.")
    return [check for check in known.values() if not only or check.name in only]


def _greet(probe: Probe) -> Answer:
    try:
        answer = probe.ask()
    except Finding as finding:
        raise Unreachable(f"{probe.address} cannot be reached. {finding.reason}") from None
    if answer.status in {401, 403}:
        raise Forbidden(f"{probe.address} asks who you are ({answer.status}): give a header by -H.")
    if answer.status in {404, 405, 410}:
        raise NotFound(f"There is no feed at {probe.address} ({answer.status}).")
    if 300 <= answer.status < 400:  # noqa: PLR2004 - the class of redirections
        raise NotFound(f"{probe.address} has moved ({answer.status}): give the feed's own address.")
    return answer


def _v1_subject(probe: Probe, partitions: int | None) -> Subject | None:
    """Return the feed as v1 sees it, if it speaks v1."""
    if partitions is not None:
        return Subject(probe, range(partitions))
    try:
        subject = Subject(probe, sorted(Subject(probe).partitions()))
        answer = subject.send([*subject.parameters(), ("pagesizehint", "1")])
    except Finding:
        return None
    return subject if answer.ok and b'"partition"' in answer.body else None
