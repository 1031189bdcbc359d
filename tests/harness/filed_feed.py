"""A feed whose first events also lie in files, which a web server or a folder gives."""

from datetime import UTC, datetime
from pathlib import Path

from starlette.applications import Starlette
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from harness.laid_out_feed import ReadFeed
from zeroeventhub import FIRST, feed_routes
from zeroeventhub.archive.draft import Draft
from zeroeventhub.protocol import SEGMENTS, STOP, SegmentPart, Segments

MOMENT = datetime(2026, 11, 21, tzinfo=UTC)


class FiledFeed(ReadFeed):
    """Be a feed with files.

    Args:
        partitions: how many there are.
        folder: where the files lie.

    Attributes:
        base: what stands before the name of a file in its URL.
        parts_at_once: how many files an answer names at most.
        asked: from which cursors files were asked for.
        read_from: from which cursors pages were.
        sizes: of files, where they are not what they are said to be.
        splits_at: the question for files at which partition 1 is split; 0 for none.
    """

    def __init__(self, partitions: int, folder: Path) -> None:
        super().__init__(partitions, frozenset({STOP, SEGMENTS}))
        self.folder = folder
        self.base = folder.as_uri()
        self.files: list[tuple[str, int, int]] = []
        self.parts_at_once = 100
        self.asked: list[str] = []
        self.read_from: list[str] = []
        self.splits_at = 0
        self.sizes: dict[str, int] = {}

    def seal(self) -> None:
        """Put into a file what is in none yet."""
        after, upto = self.sealed, len(self.rows)
        draft = Draft()
        shown = sorted(
            (number, share.id, key)
            for share in self.layout.partitions
            for number, key in self.shown(share.id, after)
        )
        draft.add(
            {
                "position": [number for number, _, _ in shown],
                "partition": [partition for _, partition, _ in shown],
                "id": [None for _ in shown],
                "type": [None for _ in shown],
                "time": [MOMENT for _ in shown],
                "key": [str(key) for _, _, key in shown],
                "headers": [None for _ in shown],
                "data": [f'{{"key":{key},"n":{number}}}' for number, _, key in shown],
            }
        )
        name = f"{after}-{upto}.parquet"
        (self.folder / name).write_bytes(draft.make(after, upto, str(upto)).content)
        self.files.append((name, after, upto))

    @property
    def sealed(self) -> int:
        """The position up to which events are in files."""
        return self.files[-1][2] if self.files else 0

    def read(self, partition, cursor, limit, *, stop=None):
        """Read a page."""
        self.read_from.append(cursor)
        return super().read(partition, cursor, limit, stop=stop)

    def segments(self, partition, cursor, *, stop=None):
        """Name the files behind a cursor."""
        self.asked.append(cursor)
        if len(self.asked) == self.splits_at:
            self.layout = self.layout.split(1, into=2)
        after = 0 if cursor == FIRST else int(cursor)
        until = self.sealed if stop is None else min(self.sealed, int(stop))
        parts = [
            SegmentPart(
                f"{self.base}/{name}",
                self.sizes.get(name) or (self.folder / name).stat().st_size,
                max(after, start),
                min(until, end),
                str(min(until, end)),
            )
            for name, start, end in self.files
            if max(after, start) < min(until, end)
        ][: self.parts_at_once]
        return Segments(parts, parts[-1].cursor if parts else str(after))


class Store:
    """Give the files of a folder over HTTP, and fail first as often as it is told.

    Args:
        folder: where they are.

    Attributes:
        failures: statuses to answer with before anything is given.
        ranges: what was asked for.
        headers: the headers of all requests.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.failures: list[int] = []
        self.ranges: list[str] = []
        self.headers: list[dict[str, str]] = []

    async def answer(self, request):
        """Answer with a range of a file."""
        self.headers.append(dict(request.headers))
        self.ranges.append(request.headers["range"])
        if self.failures:
            return Response(status_code=self.failures.pop(0))
        return FileResponse(self._folder / request.path_params["name"])


def application(feed: FiledFeed, store: Store, **options) -> Starlette:
    """Serve a feed, and its files beside it."""
    files = Route("/files/{name}", store.answer)
    return Starlette(routes=[*feed_routes("/feed", feed, **options), files])
