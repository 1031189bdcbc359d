"""The sections of the specification (spec/SPEC.md) that the checks stand on."""

from typing import Final

__all__ = [
    "ARROW",
    "CACHING",
    "CAUGHT_UP",
    "CLOSED",
    "CURSORS",
    "CURSOR_OF_COUNT",
    "CURSOR_OF_TIME",
    "DISCOVERY",
    "EVENT_TYPES",
    "EXACTLY_ONCE",
    "EXTENSIONS",
    "JSON",
    "KEY_HISTORY",
    "KINDS",
    "LAG",
    "LIMITS",
    "LINES",
    "MEDIA_TYPES",
    "PAGES",
    "PARTITIONS",
    "PROBLEMS",
    "READING",
    "REPLAY",
    "REQUESTS",
    "SEGMENTS",
    "SPECIAL_CURSORS",
    "SPLITS",
    "SPLITTING",
    "STOP",
    "TOKEN",
    "V1",
    "WAIT",
]

REQUESTS: Final = "2.1"
MEDIA_TYPES: Final = "2.2"
JSON: Final = "2.3"
DISCOVERY: Final = "3"
READING: Final = "4"
SPLITTING: Final = "5.1"
LINES: Final = "5.2"
PAGES: Final = "6"
CURSORS: Final = "7.1"
SPECIAL_CURSORS: Final = "7.4"
TOKEN: Final = "8.1"  # noqa: S105 - not a password
PARTITIONS: Final = "8.3"
CLOSED: Final = "8.2"
EXTENSIONS: Final = "9.1"
CAUGHT_UP: Final = "9.2"
EVENT_TYPES: Final = "9.3"
STOP: Final = "9.4"
WAIT: Final = "9.5"
CURSOR_OF_TIME: Final = "9.6"
SPLITS: Final = "9.7"
LAG: Final = "9.8"
ARROW: Final = "9.9"
CURSOR_OF_COUNT: Final = "9.10"
KEY_HISTORY: Final = "9.11"
SEGMENTS: Final = "9.12"
PROBLEMS: Final = "10.1"
KINDS: Final = "10.2"
CACHING: Final = "11"
V1: Final = "12"
EXACTLY_ONCE: Final = "13.1"
REPLAY: Final = "14"
LIMITS: Final = "16"
