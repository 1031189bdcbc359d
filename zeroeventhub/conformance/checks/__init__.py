"""The checks, a module for each part of the protocol."""

from zeroeventhub.conformance.checks import (
    arrow,
    caching,
    caught_up,
    cursor_of_time,
    discovery,
    event_types,
    lag,
    lines,
    parameters,
    problems,
    reading,
    splits,
    stop,
    token,
    v1,
    wait,
)

__all__ = [
    "arrow",
    "caching",
    "caught_up",
    "cursor_of_time",
    "discovery",
    "event_types",
    "lag",
    "lines",
    "parameters",
    "problems",
    "reading",
    "splits",
    "stop",
    "token",
    "v1",
    "wait",
]
