"""All scenarios by name."""

from zeroeventhub.conformance.misbehaving import answers, cuts, layouts, lines, v1, values
from zeroeventhub.conformance.misbehaving.scenario import Scenario, at_offset, listed

__all__ = ["MODULES", "all_scenarios", "expand"]

MODULES = (answers, cuts, layouts, lines, values, v1)
"""Where scenarios are; each puts its own on the list."""


def all_scenarios() -> dict[str, Scenario]:
    """Return all scenarios by name; those with offsets once."""
    return listed()


def expand(name: str) -> Scenario | None:
    """Return the scenario of a name, which may end in an offset."""
    known = all_scenarios()
    if name in known and known[name].sizes is None:
        return known[name]
    family, _, offset = name.rpartition("-")
    sizes = known[family].sizes if family in known else None
    if sizes is None or not (offset.isascii() and offset.isdigit() and int(offset) < sizes):
        return None
    return at_offset(family, int(offset))
