"""Requests to send to a feed, and answers to understand; no I/O."""

from zeroeventhub._wire.wire import UNREACHED, Wire
from zeroeventhub._wire.writing import rfc3339

__all__ = ["UNREACHED", "Wire", "rfc3339"]
