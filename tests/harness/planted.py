"""Mistakes that may be planted in the library, each with the tests that must notice it."""

from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "zeroeventhub"
FOLDER = Path(__file__).parents[1] / "planted"


@dataclass(frozen=True)
class Planted:
    """Describe a mistake.

    Attributes:
        name: the sentence that it breaks.
        module: the module that keeps the rule, below the package.
        old: its text there, which occurs once.
        new: the text with the mistake.
        tests: what pytest is to run; one of them has to fail.
    """

    name: str
    module: str
    old: str
    new: str
    tests: tuple[str, ...]

    def plant(self, package: Path) -> None:
        """Change the module in a copy of the package.

        Raises:
            ValueError: the module does not hold the text once.
        """
        module = package / self.module
        source = module.read_text()
        if source.count(self.old) != 1:
            raise ValueError(
                f"{self.module} holds {self.old!r} {source.count(self.old)} times, not once: "
                f"say anew how to break this rule: {self.name}."
            )
        changed = source.replace(self.old, self.new)
        compile(changed, self.module, "exec")
        module.write_text(changed)


def planted() -> tuple[Planted, ...]:
    """Return the mistakes of all rooms."""
    found: list[Planted] = []
    for file in sorted(FOLDER.glob("*.py")):
        spec = spec_from_file_location(f"planted_{file.stem}", file)
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        found += module.PLANTED
    return tuple(found)


PLANTED = planted()
