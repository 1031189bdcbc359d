"""Mistakes that may be planted in the library, each with the tests that must notice it.

A file of tests/planted has an entry for each:

    # the rule that it breaks
    > what pytest runs: one of these tests has to fail
    @ the module that keeps the rule
    -lines that are there once
    +lines with the mistake
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "zeroeventhub"
FOLDER = Path(__file__).parents[1] / "planted"


@dataclass(frozen=True)
class Planted:
    """Describe a mistake.

    Attributes:
        name: the rule that it breaks.
        tests: what pytest is to run; one of them has to fail.
        module: the module that keeps the rule, below the package.
        old: its lines there, which occur once.
        new: the lines with the mistake.
    """

    name: str
    tests: tuple[str, ...]
    module: str
    old: str
    new: str

    def plant(self, package: Path) -> None:
        """Change the module in a copy of the package.

        Raises:
            ValueError: the module does not hold the lines once.
        """
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
    found = []
    for entry in file.read_text().split("\n\n# ")[1:]:
        name, tests, module, *lines = entry.rstrip("\n").split("\n")
        old, new = (
            "".join(line[1:] + "\n" for line in lines if line[0] in signs) for signs in (" -", " +")
        )
        found.append(Planted(name, tuple(shlex.split(tests[2:])), module[2:], old, new))
    return found


PLANTED = [one for file in sorted(FOLDER.glob("*.diff")) for one in planted(file)]
