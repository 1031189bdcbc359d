"""Settings of gunicorn: four processes, each with an event loop."""

from typing import Any

from prometheus_client.multiprocess import mark_process_dead

workers = 4
worker_class = "uvicorn_worker.UvicornWorker"


def child_exit(_: Any, worker: Any) -> None:
    """Let gauges no longer count a process that has ended."""
    mark_process_dead(worker.pid)
