"""A console in the browser: feeds, their events, and the consumers that read them."""

from zeroeventhub.errors import require

require("jinja2", extra="console", user="The console")

from zeroeventhub.console.routes import console_routes  # noqa: E402 - after the check

__all__ = ["console_routes"]
