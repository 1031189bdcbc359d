"""`zeroeventhub demo`: a publisher, a consumer, and no mercy."""

from zeroeventhub.cli.demo.command import demo

__all__ = ["demo"]
