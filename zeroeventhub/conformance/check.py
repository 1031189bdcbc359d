"""Checks: their registry, and their run on a feed."""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx

from zeroeventhub.conformance.answer import Answer, Finding, Outcome, skip
from zeroeventhub.conformance.subject import Probe, Subject
from zeroeventhub.errors import ConfigurationError, Forbidden, NotFound, Unreachable
from zeroeventhub.extensions import EXTENSIONS

LONGEST = 60.0
"""Seconds after which the remaining checks are skipped."""

_V1_ANSWERS = {400, 422}


@dataclass(frozen=True)
class Result:
    """The result of a check, with its name and its rule."""

    name: str
    section: str  # of the specification, with the rule
    sentence: str  # the rule
    outcome: Outcome
    reason: str = ""  # the finding; empty for a check that passed
    answer: Answer | None = None  # that shows it
    seconds: float = 0.0  # that the check took
    fault: str = ""  # a text that results of the same fault have in common


Run = Callable[[Subject], None]


@dataclass(frozen=True)
class Check:
    """A rule of the specification, and the function that checks it."""

    name: str  # for `--only`
    section: str  # of the specification, with the rule
    sentence: str  # the rule
    run: Run  # raises a Finding unless the check passes
    extension: str | None = None  # that it needs; None for a check of any feed
    v1: bool = False  # whether its requests are those of v1
    writes: bool = False  # whether it appends events, which it may only where `writable` says so


_CHECKS: dict[str, Check] = {}


def register(
    about: str,
    name: str,
    sentence: str,
    run: Run,
    *,
    v1: bool = False,
    v2: bool = True,
    writes: bool = False,
) -> None:
    """Register a check for FeedAPI v2, for ZeroEventHub v1 (as "v1-" and its name), or for both.

    It is about a section of the specification, or about an extension by its name.
    """
    extension = EXTENSIONS.get(about)
    section = about if extension is None else extension.section
    if v2:
        needed = None if extension is None else about
        _CHECKS[name] = Check(name, section, sentence, run, needed, writes=writes)
    if v1:
        _CHECKS[f"v1-{name}"] = Check(f"v1-{name}", "12", sentence, run, v1=True)


def check(
    about: str, sentence: str, *, needs: int | None = None, **options: Any
) -> Callable[[Callable[..., None]], None]:
    """Register a function as the check of its name, with hyphens for underscores.

    With `needs`, the function also gets the partition with the most events and its walk, and is
    skipped if there are fewer events. The options are those of `register`.
    """

    def register_function(make: Callable[..., None]) -> None:
        def run(subject: Subject) -> None:
            make(subject, *(() if needs is None else subject.sample(needs)))

        name = make.__name__.rstrip("_").replace("_", "-")
        register(about, name, sentence, run, **options)

    return register_function


def all_checks() -> dict[str, Check]:
    """Return all checks by name: those of FeedAPI v2 first."""
    return dict(sorted(_CHECKS.items(), key=lambda item: item[1].v1))


def _make(chosen: Check, subject: Subject | None) -> Result:
    """Make one check of a feed; skip it if the feed (None) does not speak its version."""
    began = time.monotonic()
    finding = Finding(Outcome.PASS, "")
    try:
        if subject is None:
            skip(
                "The feed does not speak ZeroEventHub v1."
                if chosen.v1
                else "The feed speaks ZeroEventHub v1 only."
            )
        if chosen.extension and chosen.extension not in subject.extensions:
            skip(f"The feed does not list the extension {chosen.extension}.")
        chosen.run(subject)
    except Finding as found:
        finding = found
    except Exception as error:  # noqa: BLE001 - answers may have any form
        # Its text may hold anything that the publisher has sent.
        reason = f"An answer is not what the check expects: {type(error).__name__}."
        finding = Finding(Outcome.FAIL, reason)
    answer = finding.answer
    if finding.outcome is Outcome.FAIL and answer is None and subject is not None:
        answer = subject.probe.last
    rule, seconds = (chosen.name, chosen.section, chosen.sentence), time.monotonic() - began
    return Result(*rule, finding.outcome, finding.reason, answer, seconds, finding.fault)


def check_feed(
    url: str,
    http: httpx.Client,
    *,
    partitions: int | None = None,
    only: Collection[str] = (),
    writable: bool = False,
) -> Iterator[Result]:
    """Check a feed, and yield each result at once; each fault fails one check.

    Args:
        url: the feed's address.
        http: a client with the headers that the publisher requires; the caller closes it.
        partitions: the number of partitions of a feed that only speaks ZeroEventHub v1.
        only: names of the checks to make; by default all.
        writable: whether to make the checks that append events, too; they stay in the log.

    Raises:
        ConfigurationError: the address or a name is wrong, or a check needs `writable`.
        Unreachable: the address does not answer.
        Forbidden: the feed requires credentials.
        NotFound: the address has no feed.
    """
    all_chosen = _choose(only, writable=writable)
    probe = Probe(url, http)
    first = _greet(probe)
    v2 = first.ok or (first.status not in _V1_ANSWERS and partitions is None)
    if not v2 and partitions is None:
        raise ConfigurationError(
            f"{probe.address} does not answer discovery ({first.status}); if it is a feed of "
            "ZeroEventHub v1, give its number of partitions."
        )
    # Each version has its own probe, because checks look at all refusals of a probe.
    probe_v1 = Probe(url, http)
    subject_v1 = _v1_subject(probe_v1, partitions)
    probe.end = probe_v1.end = time.monotonic() + LONGEST
    subjects = {False: Subject(probe) if v2 else None, True: subject_v1}
    found: dict[str, str] = {}
    for chosen in all_chosen:
        result = _make(chosen, subjects[chosen.v1])
        if result.outcome is Outcome.FAIL:
            finder = found.setdefault(result.fault, chosen.name)
            if finder != chosen.name:
                seen = f"It meets the fault that {finder} has found: {result.reason}"
                result = replace(result, outcome=Outcome.SKIP, reason=seen)
        yield result


def _choose(only: Collection[str], *, writable: bool) -> list[Check]:
    known = all_checks()
    if unknown := sorted(set(only) - set(known)):
        raise ConfigurationError(f"There is no check {unknown[0]!r}: --list shows their names.")
    if not writable and (writing := [name for name in only if known[name].writes]):
        raise ConfigurationError(
            f"The check {writing[0]!r} appends events: allow it by --writable."
        )
    chosen = only or [one.name for one in known.values() if writable or not one.writes]
    return [one for one in known.values() if one.name in chosen]


def _greet(probe: Probe) -> Answer:
    try:
        answer = probe.ask()
    except Finding as finding:
        raise Unreachable(f"{probe.address} cannot be reached. {finding.reason}") from None
    if answer.status in {401, 403}:
        raise Forbidden(
            f"{probe.address} needs credentials ({answer.status}): give a header by -H."
        )
    if answer.status in {404, 405, 410}:
        raise NotFound(f"There is no feed at {probe.address} ({answer.status}).")
    if 300 <= answer.status < 400:  # noqa: PLR2004 - the class of redirections
        raise NotFound(f"{probe.address} has moved ({answer.status}): give the feed's own address.")
    return answer


def _v1_subject(probe: Probe, partitions: int | None) -> Subject | None:
    """Return the feed for requests of v1; None if it does not speak v1."""
    if partitions is not None:
        return Subject(probe, range(partitions))
    try:
        subject = Subject(probe, sorted(Subject(probe).partitions()))
        answer = subject.send([*subject.parameters(), ("pagesizehint", "1")])
    except Finding:
        return None
    return subject if answer.ok and b'"partition"' in answer.body else None
