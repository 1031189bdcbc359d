"""Mistakes that may be planted in the library, each with the tests that must notice it.

A file of tests/planted has, after the name of each file of the library, the rules that it keeps:

    @ server/pages.py
    # the rule that a mistake breaks
    > what pytest runs: one of these tests has to fail; by default the file's own
    -lines that are there once
    +lines with the mistake
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "zeroeventhub"
TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Planted:
    """Describe a mistake.

    Attributes:
        module: the file that keeps the rule, below the package.
        name: the rule that it breaks.
        tests: what pytest is to run; one of them has to fail.
        old: its lines there, which occur once.
        new: the lines with the mistake.
    """

    module: str
    name: str
    tests: tuple[str, ...]
    old: str
    new: str

    def plant(self, package: Path) -> None:
        """Change the module in a copy of the package; the module has to hold the lines once."""
        module = package / self.module
        source = "\n" + module.read_text()
        if (count := source.count("\n" + self.old)) != 1:
            raise ValueError(
                f"{self.module} holds {self.old!r} {count} times, not once: "
                f"say anew how to break this rule: {self.name}."
            )
        changed = source.replace("\n" + self.old, "\n" + self.new)[1:]
        compile(changed, self.module, "exec")
        module.write_text(changed)


def planted(file: Path) -> list[Planted]:
    """Return the mistakes of a file."""
    found, module = [], ""
    for entry in file.read_text().split("\n\n"):
        marked = [(line[0], line[1:] + "\n") for line in entry.rstrip("\n").split("\n")]
        module = _text(marked, "@").strip() or module
        tests = shlex.split(_text(marked, ">")) or tests_of(module)
        name, old, new = _text(marked, "#").strip(), _text(marked, " -"), _text(marked, " +")
        found.append(Planted(module, name, tuple(tests), old, new))
    return found


def _text(marked: list[tuple[str, str]], marks: str) -> str:
    return "".join(line for mark, line in marked if mark in marks)


def tests_of(module: str) -> list[str]:
    """Return the files of tests that have the name of a file of the library."""
    room, _, name = module.removesuffix(".py").rpartition("/")
    files = [f"tests/{kind}/{room}/test_{name}.py" for kind in ("unit", "integration")]
    return [file for file in files if (TESTS.parent / file).exists()]


PLANTED = [one for file in sorted((TESTS / "planted").glob("*.diff")) for one in planted(file)]
