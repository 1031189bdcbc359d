"""The checks, a module for each part of the protocol; importing them registers them in order."""

# The checks of all answers come last.
# isort: off
from zeroeventhub.conformance.checks import layout
from zeroeventhub.conformance.checks import reading
from zeroeventhub.conformance.checks import page_requests
from zeroeventhub.conformance.checks import extensions
from zeroeventhub.conformance.checks import appending
from zeroeventhub.conformance.checks import answers

# isort: on

__all__ = ["answers", "appending", "extensions", "layout", "page_requests", "reading"]
