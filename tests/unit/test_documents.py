"""The documents and the library name files that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_files_that_a_document_names_are_there(document):
    """Every test, benchmark and example that a document names by its path exists."""
    named = re.findall(r"`((?:tests|benchmarks|examples)/[\w./-]+)`", document.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_figures_in_the_readme_are_those_that_were_measured():
    """Each figure of the README stands in the table of targets of docs/benchmarks.md."""
    table = re.search(
        r"<!-- figures of docs/benchmarks.md -->\n((?:\|.*\n)+)", DOCUMENTS[0].read_text()
    )
    shown = [tuple(row.strip("| ").split(" | ")) for row in table[1].splitlines()[2:]]
    targets = (ROOT / "docs" / "benchmarks.md").read_text().splitlines()
    rows = [tuple(cell.strip() for cell in row.split("|")) for row in targets]
    measured = {(row[1], row[2], row[4]) for row in rows if len(row) > 5}
    assert shown
    assert set(shown) <= measured
