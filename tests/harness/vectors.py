"""The vectors of the specification: bytes, and what they mean (spec/vectors/README.md)."""

import json
from functools import cache
from pathlib import Path

import pytest

SPECIFICATION = Path(__file__).parents[2] / "spec"


@cache
def vectors(kind: str) -> dict:
    """Read one file of vectors."""
    document = json.loads((SPECIFICATION / "vectors" / f"{kind}.json").read_text())
    assert (document["format"], document["kind"]) == (1, kind)
    return document


@cache
def schema(name: str) -> dict:
    """Read one of the schemas."""
    return json.loads((SPECIFICATION / "schemas" / f"{name}.json").read_text())


def content(text) -> bytes:
    """Put a text together: a string, or parts of characters, bytes and repetitions."""
    body = b""
    for part in [{"text": text}] if isinstance(text, str) else text:
        match part:
            case {"text": characters}:
                body += characters.encode()
            case {"hex": digits}:
                body += bytes.fromhex(digits)
            case {"repeat": characters, "times": times}:
                body += characters.encode() * times
            case _:
                raise AssertionError(f"{part} is not a part of a text.")
    return body


def named(kind: str) -> list:
    """List the vectors of a kind as parameters of a test, each by its name."""
    return [pytest.param(vector, id=ascii(vector["name"])) for vector in vectors(kind)["vectors"]]
