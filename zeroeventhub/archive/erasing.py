"""Segments without some of their events, whose positions stay."""

from collections.abc import Callable, Collection
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from zeroeventhub.archive.draft import Draft, Made
from zeroeventhub.archive.form import SCHEMA

if TYPE_CHECKING:
    from zeroeventhub.archive.archive import Archive
    from zeroeventhub.archive.manifest import Segment

__all__ = ["erase"]

_TELLING = ("id", "key", "headers", "data")
"""The columns that may tell of somebody; when an event of what type was there stays known."""


def erase(
    archive: "Archive", ids: Collection[str], keys: Collection[str], bare: Callable[[int], str]
) -> int:
    """Put segments without some events in the place of those that have them.

    Stopped anywhere, it can be done again: what is erased is erased.

    Args:
        archive: has the segments.
        ids: of the events.
        keys: of more of them.
        bare: makes the cursor behind an event that is no longer there, of its position.

    Returns:
        How many events were erased.

    Raises:
        Unavailable: the store did not answer; do it again.
    """
    erased = 0
    for name in [segment.name for segment in archive.look().segments]:
        # Until it is done, or nothing is left to do; somebody else may be sealing.
        while (segment := _named(archive, name)) is not None:
            if not keys and not _may_have(archive, segment, ids):
                break
            made, events = _without(archive.content(segment), segment, ids, keys, bare)
            if made is None:
                break
            if archive.replace(made, name, events):
                erased += events
    return erased


def _named(archive: "Archive", name: str) -> "Segment | None":
    found = (segment for segment in archive.manifest.segments if segment.name == name)
    return next(found, None)


def _may_have(archive: "Archive", segment: "Segment", ids: Collection[str]) -> bool:
    """Tell whether an id lies between the lowest and the highest of a row group."""
    entries = archive.load_footer(segment).entries
    return any(
        one.lowest <= identity <= one.highest
        for one in entries
        if one.lowest is not None and one.highest is not None
        for identity in ids
    )


def _without(
    content: bytes,
    segment: "Segment",
    ids: Collection[str],
    keys: Collection[str],
    bare: Callable[[int], str],
) -> tuple[Made | None, int]:
    """Make a segment without some events; None if it has none of them."""
    table = parquet.read_table(BytesIO(content)).cast(SCHEMA)
    gone = pc.or_(_among(table.column("id"), ids), _among(table.column("key"), keys))
    events = pc.sum(pc.and_(gone, pc.is_valid(table.column("data")))).as_py() or 0
    if not events:
        return None, 0
    for name in _TELLING:
        field = SCHEMA.field(name)
        left = pc.if_else(gone, pa.scalar(None, field.type), table.column(name))
        table = table.set_column(SCHEMA.get_field_index(name), field, left)
    last = segment.last
    at_end = pc.equal(table.column("position"), segment.upto)
    if pc.any(pc.and_(gone, at_end)).as_py():
        last = bare(segment.upto)
    draft = Draft()
    for batch in table.to_batches():
        draft.take(batch)
    return draft.make(segment.after, segment.upto, last), events


def _among(column: Any, values: Collection[str]) -> Any:
    return pc.is_in(column, pa.array([*values], pa.string()))
