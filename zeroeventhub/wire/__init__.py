"""Encode and decode pages and documents, without I/O."""

__all__ = ["ARROW_TYPE", "NDJSON_TYPE"]

ARROW_TYPE = "application/vnd.apache.arrow.stream"
NDJSON_TYPE = "application/x-ndjson"
