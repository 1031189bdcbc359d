"""Export a feed to Parquet or DuckDB: each event once, whatever is killed.

The cursors lie with the rows before them, in the same file of Parquet or the same transaction of
DuckDB, so that an export goes on where the rows end that are there.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from zeroeventhub.client import Client
from zeroeventhub.errors import ConfigurationError, StoreUnavailable, require

require("pyarrow", extra="arrow", user="An export")
import pyarrow as pa  # noqa: E402 - named if missing
from pyarrow import parquet  # noqa: E402 - the same

from zeroeventhub.bulk.arrow_read import Cursors, read_arrow  # noqa: E402 - the same

CHUNK_ROWS = 1_000_000
"""Rows that are collected in memory before they are written."""

CHUNK_BYTES = 128 * 1024 * 1024
"""Bytes of Arrow at which fewer rows are written."""

_CURSORS = b"zeroeventhub.cursors"
"""Where the metadata of a Parquet file has the cursors after its rows."""


class ParquetFolder:
    """A folder of Parquet files, numbered from 0 on, each with the cursors after its rows.

    Attributes:
        cursors: those after the last file; None without one.
    """

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_dir():
            raise ConfigurationError(f"{path} is a file, and an export makes a folder of files.")
        path.mkdir(parents=True, exist_ok=True)
        for draft in path.glob(".*.draft"):  # of an export that was killed
            draft.unlink(missing_ok=True)
        self.cursors: Cursors | None = None
        self._path = path
        self._schema: pa.Schema | None = None
        self._count = len([*path.glob("*.parquet")])
        if self._count:
            last = self._file(self._count - 1)
            self._schema = parquet.read_schema(last) if last.exists() else pa.schema([])
            cursors = (self._schema.metadata or {}).get(_CURSORS)
            if cursors is None:
                raise ConfigurationError(f"{path} has other Parquet files: choose another folder.")
            self.cursors = {int(one): cursor for one, cursor in json.loads(cursors).items()}

    def expect(self, schema: pa.Schema) -> None:
        """Refuse other columns than those of the files."""
        if self._schema is not None and not schema.equals(self._schema):
            raise _other_columns(self._path)

    def add(self, rows: pa.Table, cursors: Cursors) -> None:
        """Add a file."""
        file = self._file(self._count)
        draft = file.with_name(f".{file.name}.{os.getpid()}.draft")
        try:
            with draft.open("wb") as opened:
                noted = rows.replace_schema_metadata({_CURSORS: json.dumps(cursors)})
                parquet.write_table(noted, opened, compression="zstd")
                opened.flush()
                os.fsync(opened.fileno())
            # Whole, or not there at all; refused where another process has made it.
            os.link(draft, file)
        except (FileExistsError, FileNotFoundError):
            raise ConfigurationError(
                f"Another export writes into {self._path}: run one at a time."
            ) from None
        finally:
            draft.unlink(missing_ok=True)
        self._count += 1

    def _file(self, number: int) -> Path:
        return self._path / f"{number:08}.parquet"


class DuckDBTable:
    """A table of a DuckDB database, beside a table of the cursors after its rows.

    Attributes:
        cursors: those after the last rows; None without rows.
    """

    def __init__(self, database: Any, path: Path, table: str) -> None:
        self._database = database
        self._path = path
        self._table = table
        database.execute(
            "CREATE TABLE IF NOT EXISTS zeroeventhub_cursors "
            "(name VARCHAR, number INTEGER, after VARCHAR, PRIMARY KEY (name, number))"
        )
        query = "SELECT number, after FROM zeroeventhub_cursors WHERE name = ?"
        found = database.execute(query, [table]).fetchall()
        self.cursors: Cursors | None = dict(found) or None
        names = {name for (name,) in database.execute("SHOW TABLES").fetchall()}
        if table in names and not found:
            raise ConfigurationError(
                f"{path} has a table {table} that no export has made: choose another name."
            )

    def expect(self, schema: pa.Schema) -> None:
        """Refuse other columns than those of the table."""
        if self.cursors is not None:
            incoming = self._database.from_arrow(schema.empty_table())
            if _columns(incoming) != _columns(self._database.table(self._table)):
                raise _other_columns(f"Table {self._table} of {self._path}")

    def add(self, rows: pa.Table, cursors: Cursors) -> None:
        """Insert rows and move the cursors, in one transaction."""
        database = self._database
        incoming = database.from_arrow(rows)
        database.begin()
        if self.cursors is None:
            incoming.create(self._table)
        else:
            incoming.insert_into(self._table)
        database.executemany(
            "INSERT OR REPLACE INTO zeroeventhub_cursors VALUES (?, ?, ?)",
            [(self._table, partition, cursor) for partition, cursor in cursors.items()],
        )
        # The cursor of an heir would hide the later one of the partition that it has replaced.
        database.execute(
            "DELETE FROM zeroeventhub_cursors WHERE name = ? AND number <> ALL (?)",
            [self._table, [*cursors]],
        )
        database.commit()
        self.cursors = cursors


def _columns(relation: Any) -> list[tuple[str, str]]:
    return [*zip(relation.columns, map(str, relation.types), strict=True)]


def _other_columns(place: object) -> ConfigurationError:
    return ConfigurationError(
        f"{place} has other columns than this export: choose these columns or another place."
    )


@contextmanager
def _opened(to: Path, table: str) -> Iterator[ParquetFolder | DuckDBTable]:
    """Open what an export writes to, by the end of its name."""
    kind = to.suffix.lower()
    if kind not in {".parquet", ".duckdb"}:
        raise ConfigurationError("An export ends in .parquet, for a folder of files, or .duckdb.")
    refused: tuple[type[Exception], ...] = (OSError,)
    try:
        if kind == ".parquet":
            yield ParquetFolder(to)
            return
        require("duckdb", extra="duckdb", user="An export to DuckDB")
        import duckdb  # noqa: PLC0415 - an extra

        refused = (OSError, duckdb.Error)
        # To close it rolls a transaction back that is open.
        with duckdb.connect(to) as database:
            yield DuckDBTable(database, to, table)
    except refused as error:
        reason = str(error).strip().partition("\n")[0]
        raise StoreUnavailable(f"{to} cannot be written: {reason}") from error


def export(
    feed: Client | str,
    to: str | Path,
    *,
    table: str = "events",
    start: Mapping[int, str] | datetime | None = None,
    **options: Any,
) -> int:
    """Export a feed up to its head, or go on with an export; return how many rows were added.

    A killed export leaves whole rows with their cursors. The next one goes on from there, and
    reads what the killed one had in memory again.

    Args:
        feed: the feed's address, or a client.
        to: a folder of Parquet files if it ends in `.parquet`; a DuckDB database if in `.duckdb`.
        table: the table in DuckDB.
        start: where the first export of these begins.
        options: those of `zeroeventhub.read_arrow`.

    Raises:
        ConfigurationError: an option cannot work, or something else is at this place.
        StoreUnavailable: the place cannot be written.
        ZeroEventHubError: as `zeroeventhub.read_arrow`.
    """
    with _opened(Path(to), table) as target:
        read = read_arrow(feed, start=target.cursors or start, **options)
        target.expect(read.schema)
        added = 0
        for rows in _chunks(read.reader):
            target.add(rows, read.cursors)
            added += rows.num_rows
        return added


def _chunks(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """Collect batches; the last one that was read is in what is yielded."""
    chunk: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in reader:
        chunk.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield pa.Table.from_batches(chunk)
            chunk, rows, size = [], 0, 0
    if chunk:
        yield pa.Table.from_batches(chunk)
