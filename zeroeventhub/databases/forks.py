"""Processes that are forked: a connection stays with the process that has opened it."""

import os
from weakref import WeakSet

from sqlalchemy import Engine, Pool, SingletonThreadPool, StaticPool
from sqlalchemy.ext.asyncio import AsyncEngine

_engines: WeakSet[Engine] = WeakSet()

_parents: list[Pool] = []
"""The pools of the parent process, kept because SQLite forbids closing their connections here."""


def not_in_forks(engine: Engine | AsyncEngine) -> None:
    """Let processes that are forked from this one open connections of their own.

    Two processes with one connection read each other's answers, and end each other's transactions.
    """
    _engines.add(engine.sync_engine if isinstance(engine, AsyncEngine) else engine)


def _leave_pools() -> None:
    for engine in tuple(_engines):
        # A database in memory is its connection, of which each process has a copy.
        if not isinstance(engine.pool, SingletonThreadPool | StaticPool):
            _parents.append(engine.pool)
            engine.dispose(close=False)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_leave_pools)
