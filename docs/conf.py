"""How Sphinx makes the site: `make docs`."""

import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

ROOT = Path(__file__).parents[1]

project = "zeroeventhub"
html_title = project
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
include_patterns = ["README.md", "docs/**.md", "spec/**.md", "examples/tutorial/README.md"]
exclude_patterns = [".*", "build", "dist", "tests", "zeroeventhub"]
root_doc = "docs/index"
suppress_warnings = [
    "misc.highlighting_failure",  # … stands for code that is left out
    "ref.python",  # the builtin `type` in signatures, beside attributes of that name
]

myst_heading_anchors = 4
smartquotes = False  # options of commands stand in the text
default_role = "code"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
# Signatures name types of other packages, and of modules that are not public.
nitpick_ignore_regex = [("py:.*", r"(?!zeroeventhub\.\w+$).*")]

html_theme = "pydata_sphinx_theme"
html_theme_options = {"show_prev_next": False}
PAGES_OF_THEIR_OWN = ("docs/comparison", "docs/concepts", "docs/first_ten_minutes")
html_sidebars = {page: [] for page in PAGES_OF_THEIR_OWN}
html_show_sourcelink = False
html_show_copyright = False

PUBLIC_MODULES = [
    "zeroeventhub",
    "zeroeventhub.archive",
    "zeroeventhub.console",
    "zeroeventhub.server",
    "zeroeventhub.spark",
    "zeroeventhub.telemetry",
    "zeroeventhub.testing",
]
PUBLIC_NAMES = {
    f"{value.__module__}.{name}": f"{module.__name__}.{name}"
    for module in map(import_module, reversed(PUBLIC_MODULES))
    for name in module.__all__
    if isinstance(value := getattr(module, name), type)
}
"""Where a class is defined, and where users import it from."""


def _show_as_code(_app: Sphinx, what: str, *rest: Any) -> None:
    """Show the example of a docstring as code; leave out what a module says of itself."""
    lines = rest[-1]
    if what == "module":
        lines.clear()
    elif "Example:" in lines:
        place = lines.index("Example:")
        lines[place : place + 1] = ["Example::", ""]


def _find_public_name(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, text: nodes.Element
) -> nodes.Element | None:
    """Resolve the name of a class in a signature, which says where the class is defined."""
    public = PUBLIC_NAMES.get(node["reftarget"])
    if public is None or node.get("refdomain") != "py":
        return None
    python = env.domains.python_domain
    return python.resolve_xref(env, node["refdoc"], app.builder, "obj", public, node, text)


def _pack_folders(app: Sphinx, tree: nodes.document) -> None:
    """Let a link to a folder of the repository lead to an archive of the folder."""
    for link in list(tree.findall(addnodes.pending_xref)):
        folder = Path(app.env.relfn2path(link["reftarget"])[1])
        if link["reftype"] == "myst" and folder.is_dir():
            name = folder.relative_to(ROOT).as_posix()
            archive = shutil.make_archive(f"{app.doctreedir}/{name}", "zip", ROOT, name)
            target = f"/{Path(archive).relative_to(app.srcdir)}"
            link.replace_self(addnodes.download_reference("", "", *link, reftarget=target))


def _lead_to_start(app: Sphinx, error: Exception | None) -> None:
    """Let the site's folder begin with its first page."""
    if error is None:
        start = app.builder.get_target_uri(app.config.root_doc)
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={start}">'
        Path(app.outdir, "index.html").write_text(f"{page}<title>{project}</title>\n")


def setup(app: Sphinx) -> None:
    """Connect the functions above."""
    app.connect("autodoc-process-docstring", _show_as_code, priority=400)  # before napoleon
    app.connect("missing-reference", _find_public_name)
    app.connect("doctree-read", _pack_folders, priority=400)  # before files are collected
    app.connect("build-finished", _lead_to_start)
