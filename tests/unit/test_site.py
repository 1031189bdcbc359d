"""The pages of the site name all that there is."""

import importlib
import inspect
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import click
import pytest
from markdown_it import MarkdownIt

from zeroeventhub import errors
from zeroeventhub.cli.commands import commands

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("spec/*.md")),
    *sorted(ROOT.glob("examples/**/README.md")),
]
SITE = ROOT / "build" / "site"
TESTS = [file.read_text() for file in ROOT.glob("tests/**/test_*.py")]


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
    own = [one for one in known if one not in groups]
    named = {one.__name__ if one.problem == "failed" else one.problem for one in own}
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


def test_every_public_name_is_in_the_reference():
    """Each name of a public package is described: by its docstring, or data by the page itself."""
    page = (ROOT / "docs" / "api.md").read_text()
    described = re.findall(r"(?:py:data|automodule):: (\S+)", page)
    packages = [
        (importlib.import_module(name), re.findall(r"\w+", members))
        for name, members in re.findall(
            r"automodule:: (\S+)\n +:members:(.*)\n +:imported-members:", page
        )
    ]
    shown = [
        value
        for package, members in packages
        for value in (getattr(package, name) for name in members or package.__all__)
        if (inspect.isclass(value) or inspect.isroutine(value)) and value.__doc__
    ]
    missing = [
        f"{package.__name__}.{name}"
        for package, _ in packages
        for name in package.__all__
        if getattr(package, name) not in shown and f"{package.__name__}.{name}" not in described
    ]
    assert shown
    assert missing == []


@pytest.mark.test_all
@pytest.mark.skipif(not SITE.exists(), reason="make docs")
def test_site_needs_no_server_and_no_other_host():
    """The site that `make docs` has made has a search, and loads nothing from other hosts."""
    assert "Search.setIndex(" in (SITE / "searchindex.js").read_text()
    assert "searchtools.js" in (SITE / "search.html").read_text()
    loading = re.compile(
        r"""<(?:script|link|img|iframe|source)\b[^>]*\s(?:src|href)=["']?(?:\w+:)?//[^>]*>"""
        r"""|url\(["']?(?:\w+:)?//[^)]*\)|@import[^;]*//[^;]*;"""
    )
    files = [*SITE.rglob("*.html"), *SITE.rglob("*.css")]
    assert {
        file.name: found for file in files if (found := loading.findall(file.read_text()))
    } == {}


def blocks(page):
    """Yield the blocks of code of a page: the line, the comment before it, what it is, the code."""
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text())
    for before, token in zip([tokens[0], *tokens], tokens, strict=False):
        if token.type == "code_block" or (token.type == "fence" and token.info[:1] != "{"):
            comment = re.fullmatch(r"<!-- (.*) -->", before.content.strip(), re.DOTALL)
            yield token.map[0] + 1, comment and comment[1], token.info, token.content


def is_run(page, mark, code):
    """Tell whether an example has the lines of a block, or a test names its page and its mark."""
    if mark.startswith("examples/"):
        shown, example = (
            {line.partition("  #")[0].strip() for line in text.splitlines()}
            for text in (code, (ROOT / mark).read_text())
        )
        return shown - {""} <= example
    word = re.escape(mark.partition(" ")[0])
    named = re.compile(
        rf"""["'](?:<!-- )?(?:{re.escape(mark)}|{word} {{\w[\w.]*}})(?: -->.*)?["']"""
    )
    return any(page.name in text and named.search(text) for text in TESTS)


def is_command(line):
    """Tell whether a line is a command of ours, with options that it takes."""
    program, *words = shlex.split(line)
    if program == "zeroeventhub":
        command = commands
        while isinstance(command, click.Group):
            command = command.commands[words.pop(0)]
        return command.make_context(command.name, words) is not None
    if program == "make":
        return f"\n{words[0]}:" in (ROOT / "Makefile").read_text()
    if program == "python":
        return any(ROOT.glob(f"examples/**/{Path(words[0]).name}"))
    if (program, words[:1]) == ("pip", ["install"]):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        return set(words[1].strip(".[]").split(",")) <= project["optional-dependencies"].keys()
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_of_code_is_run_or_says_why_not(page, tmp_path, monkeypatch):
    """A block has a mark by which a test runs it, or says why it is not run, and then may consist
    of commands as they are.
    """
    shutil.copy(ROOT / "examples" / "shop.toml", tmp_path / "zeroeventhub.toml")
    for name in ("tokens.toml", "billing.token"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)  # commands name the feeds of this file
    left = []
    for line, mark, _, code in blocks(page):
        if mark is not None and (mark.startswith("not run: ") or is_run(page, mark, code)):
            continue
        is_parsed = mark is not None and mark.startswith("parsed, not run: ")
        if is_parsed and all(map(is_command, code.replace("\\\n", "").splitlines())):
            continue
        left.append(f"{page.name}:{line} {mark} {code.splitlines()[0]}")
    assert left == []
