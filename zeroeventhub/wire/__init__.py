"""Bytes to pages and documents, and back, without any I/O."""

__all__ = ["ARROW_TYPE", "NDJSON_TYPE"]

ARROW_TYPE = "application/vnd.apache.arrow.stream"
NDJSON_TYPE = "application/x-ndjson"
