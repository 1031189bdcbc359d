"""Encode and decode pages and documents, without I/O."""

__all__ = ["ARROW_TYPE", "CLOUDEVENTS_BATCH_TYPE", "NDJSON_TYPE"]

ARROW_TYPE = "application/vnd.apache.arrow.stream"
CLOUDEVENTS_BATCH_TYPE = "application/cloudevents-batch+json"
NDJSON_TYPE = "application/x-ndjson"
