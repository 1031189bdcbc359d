"""The options that choose events by their type, and what they stand for."""

from collections.abc import Callable
from typing import Any

import click

from zeroeventhub.client import Client
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import EVENT_TYPES, TypeFilter

__all__ = ["chosen_types", "type_options"]


def type_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose events by their type."""
    for option in (
        click.option(
            "--skip-event-type",
            "skipped_types",
            multiple=True,
            metavar="NAME",
            help="Pass over events of this type; can be given several times.",
        ),
        click.option(
            "--event-type",
            "only_types",
            multiple=True,
            metavar="NAME",
            help="Read only events of this type; can be given several times.",
        ),
    ):
        command = option(command)
    return command


def chosen_types(
    client: Client, only: tuple[str, ...], skipped: tuple[str, ...]
) -> TypeFilter | None:
    """Return what to ask a feed for; None for all its events.

    Args:
        client: of the feed, which has to be one that filters.
        only: the types to read.
        skipped: the types to pass over.

    Raises:
        ConfigurationError: both were given, a name cannot be a type's, or the feed does not
            announce that it filters.
    """
    if only and skipped:
        raise ConfigurationError(
            "Say which types of events to read or which to skip: --event-type or "
            "--skip-event-type, not both."
        )
    names = only or skipped
    if not names:
        return None
    types = TypeFilter(frozenset(names), skip=bool(skipped))
    # One that ignores the filter would send events of other types as if they had been asked for.
    if EVENT_TYPES not in client.discover().extensions:
        raise ConfigurationError(
            "This feed does not announce that it filters events by their type: read all of them."
        )
    return types
