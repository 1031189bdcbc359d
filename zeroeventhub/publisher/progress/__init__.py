"""How far consumers say that they have come, so that trimming waits for them."""

from zeroeventhub.publisher.progress.progress import Progress, Registered
from zeroeventhub.publisher.progress.registering import AsyncRegistering, Registering
from zeroeventhub.publisher.progress.registry import Registry

__all__ = ["AsyncRegistering", "Progress", "Registered", "Registering", "Registry"]
