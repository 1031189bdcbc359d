"""All checks and scenarios stand in the specification and in the guide."""

import re
from pathlib import Path

from zeroeventhub.conformance import all_checks
from zeroeventhub.conformance.misbehaving import all_scenarios

ROOT = Path(__file__).parents[3]


def test_every_section_that_is_cited_exists():
    """Checks and scenarios stand on sections that the specification has."""
    headings = re.findall(
        r"^#+ ([0-9]+(?:\.[0-9]+)?)\.? ", (ROOT / "spec/SPEC.md").read_text(), re.MULTILINE
    )
    cited = {check.section for check in all_checks().values()}
    cited |= {scenario.section for scenario in all_scenarios().values()}
    assert cited <= set(headings)


def test_documentation_lists_checks_and_scenarios():
    """The guide names exactly the checks and scenarios that there are, with their sentences."""
    guide = (ROOT / "docs/conformance.md").read_text()
    checks = {name: check for name, check in all_checks().items() if not check.v1}
    listed = re.findall(r"^\| `([^`]+)` \| ([^|]+) \| ([^|]+) \|$", guide, re.MULTILINE)
    there = [*checks.items(), *all_scenarios().items()]
    assert listed == [(name, one.section, one.sentence) for name, one in there]
    v1 = {name for name, check in all_checks().items() if check.v1}
    words = guide.partition("## In the words of version 1")[2].partition("## Scenarios")[0]
    assert set(re.findall(r"`(v1-[a-z0-9-]+)`", words)) == v1
