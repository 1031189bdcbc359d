"""The published Python peer, in a virtual environment of its own."""

import fcntl
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

REQUIREMENTS = ["zeroeventhub==0.2.3", "uvicorn"]
SCRIPTS = Path(__file__).parent / "peer_scripts"
CACHE = Path(__file__).parents[2] / ".venv-peer"

ENVIRONMENT = dict(os.environ)
"""As it was before the tests began, which let clients trust no certificate of the network's."""


@pytest.fixture(scope="session")
def peer_python():
    """The interpreter of an environment that has the peer installed, which is made once."""
    return environment_with(REQUIREMENTS, CACHE)


def environment_with(requirements, folder):
    """Make a virtual environment with packages, unless it is there; return its interpreter."""
    python, complete = folder / "bin" / "python", folder / "complete"
    # Several processes run tests, and the first one installs it.
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            venv.create(folder, clear=True)
            # The pip of this environment: to install another takes longer than the rest.
            options = ["--disable-pip-version-check", "--python", python, "install", "--quiet"]
            subprocess.run(
                [sys.executable, "-m", "pip", *options, *requirements],
                check=True,
                timeout=600,
                stdout=sys.stderr,
                env=ENVIRONMENT,
            )
            complete.touch()
    return python


def run_peer(python, script, *arguments):
    """Start one of the peer's scripts; its folder is its world, so it cannot import ours."""
    return subprocess.Popen(
        [python, "-I", SCRIPTS / script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"]},
        cwd=SCRIPTS,
    )
