"""The command line."""

import os
import sys

from zeroeventhub.errors import MissingExtra, require

__all__ = ["main"]


def main() -> None:
    """Run the command that the process was started with."""
    _open_closed_streams()
    # As stderr does: an encoding that lacks a character is no mistake of the command's.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # text of a file
    try:
        for package in ("click", "rich", "sqlalchemy", "greenlet", "starlette", "uvicorn"):
            require(package, extra="cli", user="The command line")
    except MissingExtra as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(2)
    from zeroeventhub.cli.commands import commands  # noqa: PLC0415 - it needs these packages

    commands()


def _open_closed_streams() -> None:
    """Connect each standard stream that the caller has closed to nothing, also for workers.

    Otherwise the next file or socket that is opened would be taken for it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number: that of the stream
            os.set_inheritable(opened, True)  # noqa: FBT003 - it has no name
            setattr(sys, name, os.fdopen(opened, mode))
