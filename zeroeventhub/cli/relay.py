"""Relay a feed to Kafka or to a webhook."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from zeroeventhub.cli.consume import RunProgress
from zeroeventhub.cli.options import (
    EXISTING_FILE,
    as_json,
    consumer_option,
    feed_options,
    run_options,
    type_options,
)
from zeroeventhub.cli.output import Meter
from zeroeventhub.cli.table_options import open_database
from zeroeventhub.client import Client
from zeroeventhub.consumer.consumer import Consumer
from zeroeventhub.consumer.store.cursor_store import CursorStore
from zeroeventhub.errors import ConfigurationError, ProtocolError
from zeroeventhub.protocol import Event, TypeFilter
from zeroeventhub.wire.cloud_event import decodable_members, event_id, event_identity, event_key

LANES = 8
"""How many requests a webhook gets at a time."""

WEBHOOK_PAGE = 100
"""How many events are requested at once for a webhook, which takes one in each request."""

SECRET = "ZEROEVENTHUB_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable


@click.command()
@feed_options
@click.option(
    "--to",
    "target",
    required=True,
    metavar="TARGET",
    help="Where to deliver: kafka://host:port/topic, or the https URL of a webhook.",
)
@click.option(
    "--store",
    "database",
    required=True,
    metavar="DATABASE_URL",
    help="The database that keeps the cursors and the dead letters.",
)
@consumer_option
@run_options
@click.option(
    "--hold-back",
    is_flag=True,
    help="With --set-aside: also set aside the later events of a dead letter's key.",
)
@click.option(
    "--key",
    metavar="NAME",
    help="The member of an event that is its key, of a CloudEvent an attribute.",
)
@click.option(
    "--id", "identity", metavar="NAME", help="The member of an event that is its unique id."
)
@click.option(
    "--keep-partitions",
    is_flag=True,
    help="Kafka: write to the partition of the feed's number, not to the one of the key.",
)
@click.option(
    "--kafka-settings",
    "settings",
    type=EXISTING_FILE,
    envvar="ZEROEVENTHUB_KAFKA_SETTINGS",
    show_envvar=True,
    help="Kafka: a file of librdkafka's settings, as name=value lines, such as those of SASL.",
)
@click.option(
    "--secret-file",
    type=EXISTING_FILE,
    envvar=f"{SECRET}_FILE",
    show_envvar=True,
    help=f"Webhook: a file of secrets to sign with, one a line; or the variable {SECRET} has them.",
)
@click.option(
    "--lanes",
    type=click.IntRange(1),
    help=f"Webhook: how many requests to send at a time, by default {LANES}; those of a key are "
    "sent one after the other.",
)
@type_options
@as_json
def relay(
    *,
    client: Client,
    target: str,
    database: str,
    consumer: str,
    running: dict[str, Any],
    hold_back: bool,
    key: str | None,
    identity: str | None,
    keep_partitions: bool,
    settings: Path | None,
    secret_file: Path | None,
    lanes: int | None,
    types: TypeFilter | None,
    as_json: bool,
) -> None:
    """Deliver events to Kafka or a webhook, each at least once.

    The command ends when it has read all events of the feed at URL, unless --follow is given. After
    a stop or a kill, run the same command again: it continues where it was, and delivers again
    the events that it had not committed, with the same ids. Several processes with the same
    consumer name share the partitions.
    """
    if hold_back:
        if running["failures"].then != "set-aside":
            raise ConfigurationError("--hold-back goes with --set-aside.")
        running["failures"] = replace(running["failures"], hold_back=True)
    choices: dict[str, Any] = {}
    of_inbox: dict[str, Any] = {}
    if key is not None:
        choices["key"] = _member(key, event_key)
    if identity is not None:
        choices["identity"] = _member(identity, event_id)
        of_inbox["identity"] = _member(identity, event_identity)
    delivery: Any
    if target.startswith("kafka:"):
        if lanes is not None or secret_file is not None:
            raise ConfigurationError("--lanes and --secret-file are for webhooks.")
        from zeroeventhub.relay.kafka import KafkaTarget  # noqa: PLC0415 - it needs its extra

        delivery = KafkaTarget(
            target, keep_partitions=keep_partitions, settings=_settings(settings), **choices
        )
    else:
        if keep_partitions or settings is not None:
            raise ConfigurationError("--keep-partitions and --kafka-settings are for Kafka.")
        from zeroeventhub.relay.webhooks import WebhookTarget  # noqa: PLC0415 - the same

        running["limit"] = running["limit"] or WEBHOOK_PAGE
        delivery = WebhookTarget(
            target, secrets=_secrets(secret_file), lanes=lanes or LANES, **choices
        )
    engine = open_database(database)
    store = CursorStore(engine)
    with delivery as receiver, Meter("delivered") as meter:
        progress = RunProgress(meter)
        following = Consumer(
            client, store, consumer, types=types, observer=progress, **running, **choices | of_inbox
        )
        with engine.begin() as connection:
            store.create_tables(connection)
        following.run(receiver.apply, handle_signals=True)
    progress.report("Events delivered", consumer=consumer, as_json=as_json)


def _member(name: str, otherwise: Callable[[Event], str | None]) -> Callable[[Event], str | None]:
    """Return a function that reads a member of an event, or asks another one where it lacks it.

    The member is a string or a whole number; of a CloudEvent it is an attribute.
    """

    def read(event: Event) -> str | None:
        try:
            data = event.data
        except ProtocolError:
            data = decodable_members(event)
        value = data.get(name) if isinstance(data, Mapping) else None
        return str(value) if isinstance(value, str | int) else otherwise(event)

    return read


def _settings(file: Path | None) -> dict[str, str]:
    """Read settings of Kafka; an error does not show a line, which may hold a password."""
    settings = {}
    for line in [] if file is None else _lines(file.read_text()):
        name, equals, value = line.partition("=")
        if not equals:
            raise ConfigurationError(f"{file} does not hold lines of name=value.")
        settings[name.strip()] = value.strip()
    return settings


def _secrets(file: Path | None) -> list[str]:
    secrets = _lines(os.environ.get(SECRET, "") if file is None else file.read_text())
    if not secrets:
        raise ConfigurationError(
            f"Requests to a webhook are signed: give --secret-file FILE, or set {SECRET}."
        )
    return secrets


def _lines(text: str) -> list[str]:
    lines = map(str.strip, text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]
