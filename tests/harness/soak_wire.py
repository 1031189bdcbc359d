"""Break connections for as long as one likes: rows R1, R2 and R4 of the scoreboard, and beyond."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import anyio

from harness.faults.account import Account
from harness.faults.answer import Framing
from harness.faults.every_cut import Case, consume_all, fetch_all, fetch_all_async
from harness.faults.findings import Findings
from harness.faults.killed_publisher import Killed
from harness.faults.layouts import CHANGES, Changing
from harness.faults.proxied import Proxied
from harness.faults.random_faults import Trials
from harness.nginx_paths import Deployment

__all__ = ["killed_publishers", "parts"]


def parts(folder: Path, *, seed: int, seeds: int) -> dict[str, Callable[[], Findings]]:
    """Name what can be done: break connections at every byte and by dice, beside changes.

    Args:
        folder: where consumers keep their databases.
        seed: the first one.
        seeds: how many trials with drawn faults there are for each framing.
    """
    return {
        "every byte, sync client": every_byte,
        "every byte, async client": every_byte_async,
        "every byte, whole consumer": partial(every_byte_consumed, folder),
        **{
            f"random faults, {framing}": partial(random_faults, folder, framing, seed, seeds)
            for framing in Framing
        },
        "changes behind every line": partial(changes, folder),
    }


def every_byte() -> Findings:
    """Break an answer of every form at every byte in every way, for the sync client."""
    findings = Findings()
    for case in _cases():
        fetch_all(case)
        findings.add(case.findings)
    return findings


def every_byte_async() -> Findings:
    """Do the same for the async client."""
    findings = Findings()
    for case in _cases():
        anyio.run(fetch_all_async, case)
        findings.add(case.findings)
    return findings


def every_byte_consumed(folder: Path) -> Findings:
    """Do the same for a whole consumer, which then goes on."""
    findings, account = Findings(), Account(folder / "every-byte.db")
    for case in _cases():
        consume_all(case, account)
        findings.add(case.findings)
    account.dispose()
    return findings


def random_faults(folder: Path, framing: Framing, seed: int, seeds: int) -> Findings:
    """Read drawn histories through drawn faults."""
    findings, account = Findings(), Account(folder / f"{framing}.db")
    with Trials.open(account) as trials:
        for number in range(seed, seed + seeds):
            findings.add(trials.run(number, framing))
    account.dispose()
    return findings


def proxied_faults(folder: Path, seed: int, seeds: int) -> Findings:
    """Read from a real server through drawn faults."""
    findings, account = Findings(), Account(folder / "proxied.db")
    with Proxied.open(account, folder) as proxied:
        for number in range(seed, seed + seeds):
            findings.add(proxied.run(number))
    account.dispose()
    return findings


def killed_publishers(folder: Path, deployment: Deployment, seed: int, kills: int) -> Findings:
    """Read from publishers that are killed, until it is enough.

    Args:
        folder: for databases.
        deployment: what stands before the publishers.
        seed: the first one.
        kills: how many of them are enough.
    """
    findings, place = Findings(), folder / f"killed-{deployment.name}"
    place.mkdir()
    with Killed.open(deployment, place) as killed:
        for number in count(seed):
            if findings.counts["kills"] >= kills:
                break
            findings.add(killed.run(number))
    return findings


def changes(folder: Path) -> Findings:
    """Change partitions behind every line."""
    findings, place = Findings(), folder / "changes"
    place.mkdir()
    with Changing.open(place) as changing:
        for change in CHANGES:
            findings.add(changing.behind_every_line(change))
    return findings


def _cases() -> Iterator[Case]:
    return (Case(framing, packed) for framing in Framing for packed in (False, True))
