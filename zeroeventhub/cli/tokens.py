"""Tokens of readers: made once, kept as hashes, and what their readers may see of a feed."""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from secrets import token_urlsafe
from typing import Annotated, Any

import click
import msgspec
from starlette.requests import Request

from zeroeventhub.cli.configuration import Reader, read_toml
from zeroeventhub.cli.output import Answer, answering
from zeroeventhub.errors import ConfigurationError, Forbidden
from zeroeventhub.protocol import TypeFilter
from zeroeventhub.server import AppendRight, Authorize, Principal, Quota, bearer_tokens

_Hash = Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")]


@click.group()
def token() -> None:
    """Make tokens for `zeroeventhub serve --token-file`."""


@token.command()
@click.argument("name")
@answering
def new(name: str) -> Answer:
    """Print a new token for the reader NAME.

    Give the token to the reader, and add the printed line, which holds its hash, to the token file.
    The token is stored nowhere. To replace a token, add the hash of the new one to the reader's
    list, and later delete the hash of the old one.
    """
    Principal(name=name)  # refuses a name that is none
    made = token_urlsafe()
    # A plain hash is enough for 256 random bits: nobody can try that many tokens, so it need not be
    # slow, as that of a password, and it is computed for every request.
    line = f'{json.dumps(name)} = ["sha256:{sha256(made.encode()).hexdigest()}"]'
    return {"token": made, "line": line}, [f"Token: {made}", f"Line:  {line}"]


def read_tokens(file: Path) -> dict[str, str]:
    """Read the names of readers by the hashes of their tokens."""
    readers: dict[str, str] = {}
    for name, hashes in read_toml(file, dict[str, list[_Hash]]).items():
        for each in hashes:
            if (other := readers.setdefault(each, name)) != name:
                raise ConfigurationError(
                    f"{file} has one hash for two readers, {other} and {name}: make each a token "
                    "of its own."
                )
    return readers


def authorization(
    tokens: Mapping[str, str] | None, readers: Mapping[str, Any] | None, *, may_append: bool
) -> Authorize | None:
    """Return the hook of a feed; None for a feed that everybody may read, which has no tokens.

    Without `readers`, all who have a token may see everything, and append if `may_append`.
    """
    if tokens is None:
        if readers is None:
            return None
        raise ConfigurationError("Only its readers may read it: give --token-file.", "readers")
    right = AppendRight() if may_append else None
    identify = bearer_tokens(
        {each: Principal(name=name, append=right) for each, name in tokens.items()}
    )
    if readers is None:
        return identify
    if strangers := ", ".join({*readers} - {*tokens.values()}):
        raise ConfigurationError(
            f"The token file has no token of its readers {strangers}.", "readers"
        )
    principals = {
        name: _principal(name, msgspec.convert(reader, Reader)) for name, reader in readers.items()
    }

    async def authorize(request: Request) -> Principal:
        reader = await identify(request)
        if reader.name not in principals:
            raise Forbidden("Your token is not one of a reader of this feed.")
        return principals[reader.name]

    return authorize


def _principal(name: str, reader: Reader) -> Principal:
    if reader.types is not None and reader.skip_types is not None:
        raise ConfigurationError(f"Reader {name} has types or skip_types, not both.", "readers")
    types: Any = reader.types
    if reader.skip_types is not None:
        types = TypeFilter(frozenset(reader.skip_types), skip=True)
    limits = {each: getattr(reader, each) for each in ("in_flight", "waiters", "rate", "burst")}
    quota = None if set(limits.values()) == {None} else Quota(**limits)
    append = AppendRight() if reader.append else None
    return Principal(
        name=name, partitions=reader.partitions, types=types, quota=quota, append=append
    )
