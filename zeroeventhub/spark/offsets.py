"""The offsets of Spark's checkpoints."""

import json
import re
from pathlib import Path

from zeroeventhub.bulk.offsets import Offsets
from zeroeventhub.errors import ConfigurationError

_ELSEWHERE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""How the URL of a remote folder begins; unlike a Windows drive, its scheme has two letters."""

_NOTHING = "-"
"""What Spark writes for a source that has no offsets yet."""


def committed_offsets(folder: str, source: str | None = None) -> Offsets:
    """Return where the committed batches of a stream end.

    Args:
        folder: the stream's checkpoint.
        source: the feed among the stream's sources: its number from 0 on, or its name in the
            query; None if the stream has one source.

    Raises:
        ConfigurationError: there is no such checkpoint or source, or a batch is not committed.
    """
    if _ELSEWHERE.match(folder):
        raise ConfigurationError(
            f"{folder} is not a folder of this machine: copy its folders offsets and commits into "
            "a local folder, and give that one."
        )
    batch = _last_batch(Path(folder))
    sources = _sources(Path(folder, "offsets", str(batch)))
    if source is None and len(sources) == 1:
        (source,) = sources
    if source is None or source not in sources:
        raise ConfigurationError(
            f"The stream has {len(sources)} sources, {', '.join(sources)}: choose the one that is "
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


def _last_batch(folder: Path) -> int:
    """Return the number of the last batch; refuse one that is not committed."""
    planned, committed = _numbers(folder / "offsets"), _numbers(folder / "commits")
    if not planned:
        raise ConfigurationError(
            f"{folder} is not the checkpoint of a stream, or the stream has not read anything yet: "
            "it has no folder offsets with a file for each batch."
        )
    last = max(planned)
    if last not in committed:
        raise ConfigurationError(
            f"Batch {last} of the stream was planned and is not committed: its sink may have a "
            "part of it. Run the query once with Trigger.AvailableNow, which finishes the batch."
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
    """Return the text of each source's offsets in a batch's file, by number or name."""
    version, _, *offsets = _lines(file)
    if version == "v1":
        return {str(number): text for number, text in enumerate(offsets)}
    if version == "v2":
        return {name: text for name, _, text in (line.partition(":") for line in offsets)}
    raise ConfigurationError(
        f"{file} has the format {version[:10]!r}, and this release reads only v1 and v2: update "
        "zeroeventhub."
    )


def _lines(file: Path) -> list[str]:
    """Return the lines of a file of Spark's: a version, data of the batch, and more."""
    try:
        lines = file.read_text("utf-8").removesuffix("\n").split("\n")
    except (OSError, ValueError):
        lines = []
    if len(lines) < 2:  # noqa: PLR2004 - the two that every file has
        raise ConfigurationError(f"{file} is not a whole file of Spark's, or cannot be read.")
    return lines
