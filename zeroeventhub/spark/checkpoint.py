"""Where a stream of Spark stands, read from its checkpoint without Spark."""

import json
import re
from pathlib import Path

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.spark.offsets import Offsets

__all__ = ["committed_offsets"]

_ELSEWHERE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""How the address of a folder begins that is not on this machine; a drive is one letter."""

_NOTHING = "-"
"""What Spark writes in the place of a source's offsets before there are any."""


def committed_offsets(folder: str, source: str | None = None) -> Offsets:
    """Return up to where the committed batches of a stream have read a feed.

    Args:
        folder: the stream's checkpoint.
        source: which of the stream's sources is the feed: its number from 0 on, or the name that
            the query gives it; None if it has one source.

    Raises:
        ConfigurationError: there is no such checkpoint or source, or a batch is under way.
    """
    if _ELSEWHERE.match(folder):
        raise ConfigurationError(
            f"{folder} is not a folder of this machine: copy its folders offsets and commits to "
            "one that is, and name that."
        )
    batch = _last_batch(Path(folder))
    return _offsets(_sources(Path(folder, "offsets", str(batch))), source)


def _last_batch(folder: Path) -> int:
    """Return the number of the last batch, which has to be committed."""
    planned, committed = _numbers(folder / "offsets"), _numbers(folder / "commits")
    if not planned:
        raise ConfigurationError(
            f"{folder} is not the checkpoint of a stream, or the stream has not read anything yet: "
            "it has no folder offsets with a file for each batch."
        )
    last = max(planned)
    if last not in committed:
        raise ConfigurationError(
            f"Batch {last} of the stream was planned and is not committed: its sink may hold a "
            "part of it. Let the query end by Trigger.AvailableNow, which finishes the batch."
        )
    _lines(folder / "commits" / str(last))
    return last


def _numbers(folder: Path) -> set[int]:
    """Return the numbers of the batches that have a file in a folder."""
    try:
        return {int(one.name) for one in folder.iterdir() if re.fullmatch("[0-9]+", one.name)}
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be read: {error.strerror}.") from None


def _sources(file: Path) -> dict[str, str]:
    """Return what a batch's file says of each source: by number, or by name where it has one."""
    version, _, *offsets = _lines(file)
    if version == "v1":
        return {str(number): text for number, text in enumerate(offsets)}
    if version == "v2":
        return {name: text for name, _, text in (line.partition(":") for line in offsets)}
    raise ConfigurationError(
        f"{file} is written as {version[:10]!r}, and only v1 and v2 are known here: update "
        "zeroeventhub."
    )


def _lines(file: Path) -> list[str]:
    """Return the lines of a file of Spark's: a version, something of the batch's own, and more."""
    try:
        lines = file.read_text("utf-8").removesuffix("\n").split("\n")
    except (OSError, ValueError):
        lines = []
    if len(lines) < 2:  # noqa: PLR2004 - the two that every file has
        raise ConfigurationError(f"{file} is not a whole file of Spark's, or cannot be read.")
    return lines


def _offsets(sources: dict[str, str], source: str | None) -> Offsets:
    """Return the offsets of a source; of the only one, if nobody says which."""
    if source is None and len(sources) == 1:
        (source,) = sources
    if source is None or source not in sources:
        raise ConfigurationError(
            f"The stream has {len(sources)} sources, {', '.join(sources)}: say which of them is "
            "the feed."
        )
    if sources[source] == _NOTHING:
        raise ConfigurationError(f"The stream has not read anything from source {source} yet.")
    try:
        document = json.loads(sources[source])
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or "cursors" not in document:
        raise ConfigurationError(f"Source {source} of the stream is not a feed.")
    return Offsets.of(document)
