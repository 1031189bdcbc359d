"""Pieces of documents, which are run as they stand."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DOCUMENTS = Path(__file__).parents[2] / "docs"


def block(document: str, mark: str) -> str:
    """Return the block of a document that has a mark."""
    text = (DOCUMENTS / document).read_text()
    return re.search(rf"<!-- {mark} -->\n```\w+\n(.*?)```", text, re.DOTALL)[1]


def typed(document: str, mark: str) -> tuple[list[str], str]:
    """Return the words of the command that a document shows, and what it prints."""
    command, shown = block(document, mark).split("\n", 1)
    return shlex.split(command.removeprefix("$ ")), shown


@contextmanager
def guide(
    document: str, places: Mapping[str, str] | None = None, **given: Any
) -> Iterator[Callable[[str], dict[str, Any]]]:
    """Yield what runs a piece of a guide by its mark, behind those before it."""
    text = (DOCUMENTS / document).read_text()
    for place, here in (places or {}).items():
        text = text.replace(place, here)
    names: dict[str, Any] = {**given}

    def piece(mark: str) -> dict[str, Any]:
        code = re.search(rf"<!-- {mark} -->\n```python\n(.*?)```", text, re.DOTALL)[1]
        exec(compile(code, mark, "exec"), names)
        return names

    try:
        yield piece
    finally:
        if "engine" in names:
            names["engine"].dispose()
