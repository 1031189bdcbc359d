"""Pages as record batches of Apache Arrow, for readers in bulk.

All but the name is imported when it is asked for: it needs pyarrow, which takes time and room.
"""

from zeroeventhub.arrow.media_type import MEDIA_TYPE

__all__ = ["MEDIA_TYPE"]
