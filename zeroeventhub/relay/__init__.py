"""Relays: a consumer whose effects are messages in Kafka, or requests to a webhook."""

from zeroeventhub.errors import require

require("sqlalchemy", extra="sql", user="A relay")
