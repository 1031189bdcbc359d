"""Processes that are forked from one that has imported what they need."""

import os
import sys
from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerContext

import pytest


def forks() -> ForkServerContext:
    """Return what starts processes; what this one has of the harness is imported once for all."""
    context = get_context("forkserver")
    context.set_forkserver_preload([name for name in sys.modules if name.startswith("harness.")])
    with pytest.MonkeyPatch.context() as patch:
        # Python 3.11 looks for it where the environment says, and not where this process does.
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        forkserver.ensure_running()
    return context
