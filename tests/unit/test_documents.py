"""The documents name files that are there, and lead to the words that they use."""

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs").glob("*.md"))
DOCUMENTS = [ROOT / "README.md", *GUIDES]


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


GLOSSARY = ROOT / "docs" / "glossary.md"
LINKING = [page for page in GUIDES if page.name not in {"benchmarks.md", "glossary.md"}]
LINKING += [ROOT / "spec" / "PRIMER.md"]
"""Pages that link the glossary: not itself, nor the page that `make bench` writes."""

WORDS = {
    "head": "heads?",
    "settled": "settled",
    "horizon": "horizons?",
    "cursor": "cursors?",
    "checkpoint": "checkpoints?",
    "token": "tokens?",
    "fence": "fence[sd]?",
    "lease": "leases?",
}
"""Words that a reader of any page meets, with their forms; a link of every word would tire."""

OTHER_MEANINGS = {
    (page, "token")
    for page in ("configuration.md", "console.md", "security.md", "spark.md", "telemetry.md")
}
"""Pages on which a word means something else: there, a token identifies a reader."""

NOT_PROSE = re.compile(
    r"^```.*?^```$"  # blocks of code
    r"|^(?:    |\||#).*?$"  # the same indented, rows of tables, headings
    r"|<!--.*?-->|`[^`]*`|!?\[[^\]]*\]\([^)]*\)",  # comments, code in a line, links, images
    re.DOTALL | re.MULTILINE,
)


def test_words_to_link_are_in_the_glossary():
    """Each of the words has a section of its own, to which links lead."""
    headings = re.findall("^## (.*)$", GLOSSARY.read_text(), re.MULTILINE)
    assert {*WORDS} <= {heading.lower() for heading in headings}


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.name)
def test_first_use_of_a_word_leads_to_the_glossary(page):
    """Where a page uses a word for the first time in its prose, it links the word's definition."""
    glossary, text = os.path.relpath(GLOSSARY, page.parent), page.read_text()
    prose = NOT_PROSE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    missing = []
    for word, forms in WORDS.items():
        link = f"({glossary}#{word})"
        used = re.search(rf"(?<![\w-])(?:{forms})(?![\w-])", prose, re.IGNORECASE)
        if used and link not in text[: used.start()] and (page.name, word) not in OTHER_MEANINGS:
            line = text.count("\n", 0, used.start()) + 1
            missing.append(f"{page.relative_to(ROOT)}:{line}: write [{used[0]}]{link}")
    assert not missing, (
        "These are first uses of words in a page's prose. Write the links; a word that means "
        f"something else on its page goes into OTHER_MEANINGS in {Path(__file__).name}: {missing}"
    )
