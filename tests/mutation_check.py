"""Plant one mistake after the other in a copy of the library: for each, the tests have to fail.

    python tests/mutation_check.py [--only PART]

The tests that a mistake names run as `make test` selects them. The exit code is 0 if every mistake
was noticed.
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
from pathlib import Path

import pytest
from harness.databases import (
    MARIADB_VARIABLE,
    POSTGRESQL_VARIABLE,
    mariadb_server,
    postgresql_server,
)
from harness.planted import PACKAGE, PLANTED, Planted

DEADLINE = 300
"""Seconds after which tests that hang have let a mistake slip."""

PASSED, FAILED = 0, 1
"""What pytest returns when all is well, and when tests have failed and nothing else was wrong."""

WITNESS = """
import os
from pathlib import Path

import zeroeventhub

assert Path(zeroeventhub.__file__).parent == Path(os.environ["PLANTED"], "zeroeventhub")
Path(os.environ["PLANTED"], "seen").touch()
"""
"""A plugin of pytest that says that the copy is what is tested."""


def main() -> int:
    """Try the mistakes, and the library as it is; return 1 if one slipped."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="a part of a mistake's file or sentence")
    options = parser.parse_args()
    chosen = [planted for planted in PLANTED if options.only in f"{planted.module} {planted.name}"]
    if not chosen:
        sys.stderr.write(f"No mistake has {options.only!r} in its file or its sentence.\n")
        return 1
    everything = list(dict.fromkeys(planted.tests for planted in chosen))
    with _servers() as environment, ThreadPoolExecutor(os.cpu_count()) as pool:

        def attempt(planted: Planted | None) -> str:
            """Return what is wrong; nothing if a mistake was noticed."""
            began, name = time.monotonic(), "the library as it is"
            if planted is None:
                code, output = _tested(None, everything, environment)
            else:
                name = f"{planted.module}: {planted.name}"
                code, output = _tested(planted, [planted.tests], environment)
            good = FAILED if planted else PASSED
            words = {good: "noticed" if planted else "passes", None: "HUNG"}
            word = words.get(code, "SLIPPED" if code == PASSED else f"pytest: {code}")
            sys.stderr.write(f"{word:>9}  {time.monotonic() - began:5.1f} s  {name}\n")
            if code == good:
                return ""
            sys.stderr.write(output)
            return f"{word}: {name}"

        broken, *slipped = pool.map(attempt, [None, *chosen])
    sys.stdout.write(f"{slipped.count('')} of {len(chosen)} mistakes were noticed.\n")
    wrong = [line for line in (broken, *slipped) if line]
    sys.stdout.write("".join(f"{line}\n" for line in wrong))
    return 1 if wrong else 0


@contextmanager
def _servers() -> Iterator[dict[str, str]]:
    """Start what servers can be had, once for all; yield the variables that name them."""
    environment = dict(os.environ)
    servers = {POSTGRESQL_VARIABLE: postgresql_server, MARIADB_VARIABLE: mariadb_server}
    with ExitStack() as stack:
        for variable, server in servers.items():
            try:
                environment[variable] = stack.enter_context(server())
            except pytest.skip.Exception as reason:
                sys.stderr.write(f"left out: {reason}\n")
        yield environment


def _tested(
    planted: Planted | None, selections: list[tuple[str, ...]], environment: dict[str, str]
) -> tuple[int | None, str]:
    """Run tests against a copy with a mistake, until some fail; return the last code and output."""
    code, output = PASSED, ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PACKAGE, folder / "zeroeventhub", ignore=ignored)
        (folder / "witness.py").write_text(WITNESS)
        if planted:
            planted.plant(folder / "zeroeventhub")
        for tests in selections:
            if code == PASSED:
                code, output = _pytest(tests, folder, environment)
    return code, output


def _pytest(
    tests: tuple[str, ...], folder: Path, environment: dict[str, str]
) -> tuple[int | None, str]:
    """Run tests against a copy; return pytest's exit code, None at the deadline, and its output.

    Raises:
        RuntimeError: it was not the copy that was tested.
    """
    # The folder that this runs in has a package of the same name, which must not be found.
    places = {"PLANTED": str(folder), "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
    try:
        process = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "witness", *tests],
            cwd=PACKAGE.parent,
            env={**environment, **places, "PYTHONDONTWRITEBYTECODE": "1"},
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
