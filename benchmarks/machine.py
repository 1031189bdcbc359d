"""What a benchmark was run on."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
from sqlalchemy import create_engine, text

PACKAGES = (
    *("SQLAlchemy", "psycopg", "msgspec", "httpx", "uvicorn", "uvloop", "httptools"),
    *("pyarrow", "pyspark"),
)


def machine(postgresql: str) -> dict[str, str]:
    """Describe this machine, and the versions of what was measured on it."""
    engine = create_engine(postgresql)
    with engine.connect() as connection:
        server = connection.scalar(text("SHOW server_version"))
        fsync = connection.scalar(text("SHOW fsync"))
    engine.dispose()
    versions = {name: _version(name) for name in PACKAGES}
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 1024**3:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "PostgreSQL": f"{server} (fsync {fsync})",
        **versions,
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
