"""What Arrow pages are called in HTTP."""

__all__ = ["MEDIA_TYPE"]

MEDIA_TYPE = "application/vnd.apache.arrow.stream"
