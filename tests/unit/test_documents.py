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
