"""Bytes to pages and documents, and back; the only place that knows their form, without any I/O."""

from zeroeventhub.ndjson.documents import (
    decode_counted_cursor,
    decode_cursor,
    decode_info,
    decode_lag,
    decode_splits,
    encode_info,
    encode_lag,
)
from zeroeventhub.ndjson.page_decoder import PageDecoder
from zeroeventhub.ndjson.page_encoder import (
    BETWEEN_EVENTS,
    MEDIA_TYPE,
    encode_page,
    encode_page_v1,
    parts_of,
)

__all__ = [
    "BETWEEN_EVENTS",
    "MEDIA_TYPE",
    "PageDecoder",
    "decode_counted_cursor",
    "decode_cursor",
    "decode_info",
    "decode_lag",
    "decode_splits",
    "encode_info",
    "encode_lag",
    "encode_page",
    "encode_page_v1",
    "parts_of",
]
