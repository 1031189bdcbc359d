"""Break connections for as long as one likes: rows R1, R2 and R4 of the scoreboard, and beyond."""

import tempfile
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

from harness.faults.account import Account
from harness.faults.every_cut import Case, Framing, async_fetch, sync_fetch
from harness.faults.findings import Findings
from harness.faults.killed_publisher import killed_while_sending
from harness.faults.layouts import CHANGES, change_behind_every_line
from harness.faults.random_faults import random_faults
from harness.nginx_paths import Deployment

__all__ = ["killed_publishers", "parts"]


def parts(folder: Path, *, seed: int, seeds: int) -> dict[str, Callable[[], Findings]]:
    """Name what can be done: break connections at every byte and by dice, beside changes.

    Args:
        folder: where consumers keep their databases.
        seed: the first one.
        seeds: how many trials with drawn faults there are for each framing.
    """
    numbers = range(seed, seed + seeds)
    return {
        "every byte, sync client": partial(_every_byte, Case.fetch_all, sync_fetch),
        "every byte, async client": partial(_every_byte, Case.fetch_all, async_fetch),
        "every byte, whole consumer": partial(
            _with_account, folder, partial(_every_byte, Case.consume_all)
        ),
        **{
            f"random faults, {framing}": partial(
                _with_account, folder, partial(random_faults, framing=framing, seeds=numbers)
            )
            for framing in Framing
        },
        "changes behind every line": partial(change_behind_every_line, _below(folder), CHANGES),
    }


def _every_byte(breaking: Callable[..., None], *arguments: object) -> Findings:
    """Break an answer of every form at every byte in every way."""
    findings = Findings()
    for case in (Case(framing, packed) for framing in Framing for packed in (False, True)):
        breaking(case, *arguments)
        findings.add(case.findings)
    return findings


def _with_account(folder: Path, breaking: Callable[[Account], Findings]) -> Findings:
    with Account.open(_below(folder) / "consumer.db") as account:
        return breaking(account)


def killed_publishers(folder: Path, deployment: Deployment, seed: int, kills: int) -> Findings:
    """Read from publishers that are killed, from a first seed on, until it is enough."""
    return killed_while_sending(deployment, _below(folder), count(seed), kills)


def _below(folder: Path) -> Path:
    """Make a folder of one's own."""
    return Path(tempfile.mkdtemp(dir=folder))
