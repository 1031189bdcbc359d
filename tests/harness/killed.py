"""Processes that are killed at a point of what they do."""

from multiprocessing import get_context

PATIENCE = 60

_forks = get_context("forkserver")
# What they do, imported once for all of them.
_forks.set_forkserver_preload(["harness.trimmed", "harness.sealed"])


def until_killed(do, *arguments):
    """Do something in a process of its own, which kills itself; return whether it did.

    Args:
        do: a function of a module.
        arguments: what it is given.
    """
    life = _forks.Process(target=do, args=arguments)
    life.start()
    life.join(PATIENCE)
    code = life.exitcode
    life.close()
    assert code in {0, -9}, code
    return code == -9
