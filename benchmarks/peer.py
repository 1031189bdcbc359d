"""The published Python peer, in a virtual environment of its own."""

import subprocess
import sys
import venv
from pathlib import Path

REQUIREMENTS = ["zeroeventhub==0.2.3", "uvicorn", "uvloop", "httptools", "psycopg[binary]"]
FOLDER = Path(__file__).parents[1] / ".venv-bench-peer"


def peer_python() -> Path:
    """Return the interpreter of an environment that has the peer installed."""
    python, complete = FOLDER / "bin" / "python", FOLDER / "complete"
    if not complete.exists():
        venv.create(FOLDER, with_pip=True, clear=True)
        subprocess.run(  # noqa: S603 - names above
            [python, "-m", "pip", "install", "--quiet", *REQUIREMENTS],
            check=True,
            timeout=600,
            stdout=sys.stderr,
        )
        complete.touch()
    return python
