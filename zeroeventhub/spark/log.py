"""What is logged where Spark runs Python, which has no logging of its own there."""

import logging

__all__ = ["log", "speak"]

log = logging.getLogger("zeroeventhub.spark")


def speak() -> None:
    """Log to standard error, which Spark keeps, unless somebody has said otherwise."""
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
