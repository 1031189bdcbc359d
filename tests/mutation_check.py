"""Remove one rule of the library after the other: for each, the tests have to fail.

The package is copied, one change is planted in the copy, and the tests that must notice run
against it.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness.databases import (
    MARIADB_VARIABLE,
    POSTGRESQL_VARIABLE,
    mariadb_server,
    postgresql_server,
)
from harness.planted import PACKAGE, PLANTED, Planted
from rich.console import Console

PATIENCE = 600
"""Seconds that the tests of a rule may take."""

FAILED = 1
"""What pytest returns when tests have failed, and nothing else was wrong."""

WITNESS = """
import os
from pathlib import Path

import zeroeventhub

assert Path(zeroeventhub.__file__).parent == Path(os.environ["PLANTED"], "zeroeventhub")
Path(os.environ["PLANTED"], "seen").touch()
"""
"""A plugin of pytest that says that the copy is what is tested."""


@dataclass(frozen=True)
class Outcome:
    """Say what the tests made of a change.

    Attributes:
        planted: the change; None for the package as it is.
        code: what pytest returned.
        seconds: how long it took.
        output: what pytest wrote.
    """

    planted: Planted | None
    code: int
    seconds: float
    output: str

    @property
    def good(self) -> bool:
        """Whether tests have failed where a rule is missing, and only there."""
        return self.code == (FAILED if self.planted else 0)

    @property
    def word(self) -> str:
        """What happened, in a word."""
        if self.code == FAILED:
            return "killed" if self.planted else "broken"
        if self.code == 0:
            return "SURVIVED" if self.planted else "passes"
        return f"pytest returned {self.code}"


def main() -> int:
    """Check all rules; return 1 if the tests let one go."""
    options = _options()
    console = Console(stderr=True)
    chosen = [planted for planted in PLANTED if options.only in planted.name]
    if not chosen:
        console.print(f"There is no rule with {options.only!r} in its name.")
        return 1
    outcomes = []
    with ExitStack() as stack:
        environment = stack.enter_context(_servers(console))
        for planted in (None, *chosen):
            name = planted.name if planted else "nothing"
            with console.status(f"without {name}" if planted else "as it is"):
                outcome = _try(planted, chosen, environment)
            console.print(f"{outcome.word:>10}  {outcome.seconds:5.1f} s  {name}")
            if not outcome.good:
                console.print(outcome.output, markup=False, highlight=False)
            outcomes.append(outcome)
            if planted is None and not outcome.good:
                break
    sys.stdout.write(_table(outcomes))
    return 0 if all(outcome.good for outcome in outcomes) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a part of a rule's name")
    return parser.parse_args()


@contextmanager
def _servers(console: Console) -> Iterator[dict[str, str]]:
    """Start what servers can be had, once for all; yield the variables that name them."""
    environment = dict(os.environ)
    with ExitStack() as stack:
        for variable, server in (
            (POSTGRESQL_VARIABLE, postgresql_server),
            (MARIADB_VARIABLE, mariadb_server),
        ):
            try:
                environment[variable] = stack.enter_context(server())
            except pytest.skip.Exception as reason:
                console.print(f"left out: {reason}")
        yield environment


def _try(planted: Planted | None, chosen: list[Planted], environment: dict[str, str]) -> Outcome:
    """Run the tests of a change, or those of all changes against the package as it is."""
    began = time.monotonic()
    code, output = 0, ""
    selections = [planted.tests] if planted else dict.fromkeys(each.tests for each in chosen)
    with _copied() as folder:
        if planted:
            planted.plant(folder / "zeroeventhub")
        for tests in selections:
            code, output = _pytest(tests, folder, environment)
            if code:
                break
    return Outcome(planted, code, time.monotonic() - began, output)


@contextmanager
def _copied() -> Iterator[Path]:
    """Copy the package into a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PACKAGE, folder / "zeroeventhub", ignore=ignored)
        (folder / "witness.py").write_text(WITNESS)
        yield folder


def _pytest(tests: tuple[str, ...], folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Run tests against a copy.

    Raises:
        RuntimeError: it was not the copy that was tested.
    """
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "witness", *tests],
        cwd=PACKAGE.parent,
        # The folder that this runs in has a package of the same name, which is not to be found.
        env={
            **environment,
            "PLANTED": str(folder),
            "PYTHONPATH": str(folder),
            "PYTHONSAFEPATH": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    output = process.stdout + process.stderr
    if not (folder / "seen").exists():
        raise RuntimeError(f"It was not the copy that was tested:\n{output}")
    return process.returncode, output


def _table(outcomes: list[Outcome]) -> str:
    rows = ["| rule that was removed | tests | seconds |\n", "| --- | --- | --- |\n"]
    rows += [
        f"| {each.planted.name} | {each.word} | {each.seconds:.0f} |\n"
        for each in outcomes
        if each.planted
    ]
    return "".join(rows)


if __name__ == "__main__":
    sys.exit(main())
