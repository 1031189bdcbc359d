"""Plant one mistake after the other in a copy of the library: for each, the tests have to fail.

    python tests/mutation_check.py [--only PART] [--whole]

The tests that a mistake names run first, as `make test` selects them. With --whole, all other tests
of `make test` run where those have let it slip. The exit code is 0 if every mistake was noticed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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

DEADLINE = 300
"""Seconds after which tests that hang have let a mistake slip."""

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
    """Say what the tests made of a mistake.

    Attributes:
        planted: the mistake; None for the library as it is.
        code: what pytest returned; None if it was ended at the deadline.
        seconds: how long it took.
        output: what pytest wrote.
    """

    planted: Planted | None
    code: int | None
    seconds: float
    output: str

    @property
    def is_good(self) -> bool:
        """Whether tests have failed where there is a mistake, and only there."""
        return self.code == (FAILED if self.planted else 0)

    @property
    def word(self) -> str:
        """What happened, in a word."""
        if self.code is None:
            return "HUNG"
        if self.planted:
            return {FAILED: "noticed", 0: "SLIPPED"}.get(self.code, f"pytest: {self.code}")
        return "passes" if self.code == 0 else "BROKEN"


def main() -> int:
    """Try the mistakes; return 1 if one slipped."""
    options = _options()
    console = Console(stderr=True)
    chosen = [planted for planted in PLANTED if options.only in f"{planted.module} {planted.name}"]
    if not chosen:
        console.print(f"No mistake has {options.only!r} in its file or its sentence.")
        return 1
    with _servers(console) as environment, ThreadPoolExecutor(options.jobs) as pool:

        def attempt(planted: Planted | None) -> Outcome:
            outcome = _attempt(planted, chosen, environment)
            if options.whole and planted and outcome.code == 0:
                outcome = _attempt(planted, chosen, environment, whole=True)
            name = f"{planted.module}: {planted.name}" if planted else "the library as it is"
            console.print(f"{outcome.word:>9}  {outcome.seconds:5.1f} s  {name}", markup=False)
            if not outcome.is_good:
                console.print(outcome.output, markup=False, highlight=False)
            return outcome

        outcomes = list(pool.map(attempt, [None, *chosen]))
    slipped = [outcome for outcome in outcomes if not outcome.is_good]
    found = len(outcomes) - 1 - sum(outcome.planted is not None for outcome in slipped)
    sys.stdout.write(f"{found} of {len(chosen)} mistakes were noticed.\n")
    for outcome in slipped:
        sys.stdout.write(f"{outcome.word}: {outcome.planted.name if outcome.planted else '-'}\n")
    return 1 if slipped else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="a part of a mistake's file or sentence")
    parser.add_argument("--whole", action="store_true", help="run all tests where some slipped")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mistakes at a time")
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


def _attempt(
    planted: Planted | None,
    chosen: list[Planted],
    environment: dict[str, str],
    *,
    whole: bool = False,
) -> Outcome:
    """Run the tests of a mistake, or those of all mistakes against the library as it is."""
    began = time.monotonic()
    code, output = 0, ""
    selections = [planted.tests] if planted else dict.fromkeys(each.tests for each in chosen)
    with _copied() as folder:
        if planted:
            planted.plant(folder / "zeroeventhub")
        for tests in [()] if whole else selections:
            code, output = _pytest(tests, folder, environment)
            if code != 0:
                break
    return Outcome(planted, code, time.monotonic() - began, output)


@contextmanager
def _copied() -> Iterator[Path]:
    """Copy the library into a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PACKAGE, folder / "zeroeventhub", ignore=ignored)
        (folder / "witness.py").write_text(WITNESS)
        yield folder


def _pytest(
    tests: tuple[str, ...], folder: Path, environment: dict[str, str]
) -> tuple[int | None, str]:
    """Run tests against a copy; return pytest's exit code, None at the deadline, and its output.

    Raises:
        RuntimeError: it was not the copy that was tested.
    """
    try:
        process = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "witness", *tests],
            cwd=PACKAGE.parent,
            # The folder that this runs in has a package of the same name, which must not be found.
            env={
                **environment,
                "PLANTED": str(folder),
                "PYTHONPATH": str(folder),
                "PYTHONSAFEPATH": "1",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return None, (error.stdout or b"").decode(errors="replace")
    if not (folder / "seen").exists():
        raise RuntimeError(f"It was not the copy that was tested:\n{process.stdout}")
    return process.returncode, process.stdout


if __name__ == "__main__":
    sys.exit(main())
