"""Bring text of any kind into a database."""

import hashlib

__all__ = ["digest", "harmless"]


def digest(text: str) -> str:
    """Return what stands for a text of any length and any characters in an index.

    Databases compare text by rules of their own, cut it or refuse it; never this.
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def harmless(text: str) -> str:
    """Escape what PostgreSQL refuses: U+0000, and surrogates that stand alone."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
