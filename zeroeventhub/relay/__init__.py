"""Relays: a consumer whose effects are messages in Kafka, or requests to a webhook."""
