"""The specification's text against itself, and against the words of the wire."""

import re

import pytest
from harness.vectors import SPECIFICATION, vectors

from zeroeventhub.extensions import EXTENSIONS

TEXT = (SPECIFICATION / "SPEC.md").read_text()
KINDS = sorted(file.stem for file in (SPECIFICATION / "vectors").glob("*.json"))
SECTIONS = set(re.findall(r"^#{2,3} ([0-9]+(?:\.[0-9]+)?)", TEXT, re.MULTILINE))


def test_sections_that_are_cited_exist():
    """Every section that the text, the primer, the document or a vector cites is there."""
    cited = {vector["section"] for kind in KINDS for vector in vectors(kind)["vectors"]}
    for name in ("SPEC.md", "openapi.yaml", "vectors/README.md"):
        text = (SPECIFICATION / name).read_text()
        for numbers in re.findall(r"sections? ([0-9][0-9., andto]*[0-9])", text):
            cited |= set(re.findall(r"\b[0-9]{1,2}(?:\.[0-9]+)?\b", numbers))
    primer = (SPECIFICATION / "PRIMER.md").read_text()
    for numbers in re.findall(r"\(([0-9][0-9., ]*)\)", primer):
        cited |= set(numbers.split(", "))
    assert cited <= SECTIONS


def test_sections_are_numbered_without_gaps():
    """Sections and their parts are numbered from 1 on."""
    parts = sorted(tuple(map(int, section.split("."))) for section in SECTIONS)
    for part in parts:
        before = (*part[:-1], part[-1] - 1)
        assert part[-1] == 1 or before in parts


def test_extensions_are_those_of_the_library():
    """The specification names the extensions of the library, and defines each in its section."""
    listed = TEXT.partition("### 9.1 ")[2].partition("### 9.2 ")[0]
    assert set(re.findall(r"^\| `([a-z-]+)` \|", listed, re.MULTILINE)) == set(EXTENSIONS)
    defined = dict(re.findall(r"^### (9\.[0-9]+) `([a-z-]+)`$", TEXT, re.MULTILINE))
    assert defined == {extension.section: name for name, extension in EXTENSIONS.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_named_once(kind):
    """A vector is known by its name."""
    names = [vector["name"] for vector in vectors(kind)["vectors"]]
    assert len(names) == len(set(names))
