"""The pages of the site name all that there is."""

import inspect
import re
from pathlib import Path

from zeroeventhub import errors

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("spec/*.md")),
    *sorted(ROOT.glob("examples/**/README.md")),
]


def test_every_error_says_what_to_do():
    """Each error and each kind of problem has its section, with what happened and what to do."""
    page = (ROOT / "docs" / "errors.md").read_text()
    sections = dict(re.findall(r"^### (\S+)\n\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL))
    for title, section in sections.items():
        assert "**What happened:**" in section, title
        assert "**What to do:**" in section, title
    kinds = re.findall(
        r"^\| \d+ \| `([\w-]+)` \|", (ROOT / "spec/SPEC.md").read_text(), re.MULTILINE
    )
    known = [one for _, one in inspect.getmembers(errors, inspect.isclass)]
    groups = {errors.ZeroEventHubError, errors.FeedError, errors.TransientError}
    named = {getattr(one, "problem", one.__name__) for one in known if one not in groups}
    assert sections.keys() == named | set(kinds)
    for one in known:
        assert f"`{one.__name__}`" in page or one.__name__ in sections


def test_every_module_that_documents_import_from_is_in_the_reference():
    """What documents and examples import from this package stands in the reference."""
    sources = [*PAGES, *ROOT.glob("examples/**/*.py")]
    used = {
        module
        for source in sources
        for module in re.findall(r"(?:from|import) (zeroeventhub[\w.]*)", source.read_text())
    }
    reference = (ROOT / "docs" / "api.md").read_text()
    assert used
    assert used - set(re.findall(r"automodule:: (\S+)", reference)) == set()
