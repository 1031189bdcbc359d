"""Consumers that are killed, frozen and cut off: another goes on, and all takes effect once."""

from dataclasses import replace

import pytest
from harness.kills.torments import TORMENTS, scene

SEED = 1

NOW = {
    ("kills", "sqlite", "loop"),
    ("kills", "sqlite", "async run"),
    ("kills", "sqlite", "run, set aside"),
    ("kills", "sqlite", "run, inbox"),
    ("kills", "sqlite", "run, lanes"),
    ("kills", "postgresql", "run"),
    ("kills", "mariadb", "run"),
    ("terminated backends", "postgresql", "run"),
    ("lost COMMITs", "postgresql", "run"),
    ("zombies", "postgresql", "run"),
    ("simultaneous starts", "sqlite", "loop"),
}
"""What is done in `make test`; the rest is left to the long tests."""


def _cases():
    for torment in TORMENTS:
        for database in torment.databases:
            for way in torment.kinds:
                if torment.row == "R3" or way in {"loop", "run", "async run"}:
                    case = (torment.name, database, way)
                    marks = () if case in NOW else pytest.mark.test_all
                    yield pytest.param(torment, database, way, marks=marks, id="-".join(case))


@pytest.mark.slow
@pytest.mark.parametrize(("torment", "database", "way"), [*_cases()])
def test_nothing_is_lost_or_applied_twice(request, torment, database, way):
    """Whatever is done to consumers, others go on, and cursors and effects are of one moment."""
    kind, url = torment.kinds[way], request.getfixturevalue(f"{database}_url")
    # In one partition the points of a page come in a row.
    in_a_row = {"partitions": 1} if torment.name in {"kills", "zombies"} else {}
    with scene(url, replace(kind.script, **in_a_row)) as here:
        found = torment.round(here, kind, SEED, brief=True)
    assert not found.complaints
    assert any(found.counts[deed] for deed in torment.deeds)
