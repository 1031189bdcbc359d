"""The command line."""

import sys

from zeroeventhub.errors import MissingExtra, require

__all__ = ["main"]


def main() -> None:
    """Run the command that the process was started with."""
    try:
        for package in ("click", "rich", "sqlalchemy", "greenlet", "starlette", "uvicorn"):
            require(package, extra="cli", user="The command line")
    except MissingExtra as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(2)
    from zeroeventhub.cli.commands import commands  # noqa: PLC0415 - it needs these packages

    commands()
