"""The published Python peer, in a virtual environment of its own."""

from pathlib import Path

from harness.peer import environment_with

REQUIREMENTS = ["zeroeventhub==0.2.3", "uvicorn", "uvloop", "httptools", "psycopg[binary]"]
FOLDER = Path(__file__).parents[1] / ".venv-bench-peer"


def peer_python() -> Path:
    """Return the interpreter of an environment that has the peer installed."""
    return environment_with(REQUIREMENTS, FOLDER)
