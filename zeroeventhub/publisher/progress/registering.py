"""What a feed with a database behind it does for consumers that say how far they have come."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.database_error import explained
from zeroeventhub.publisher.progress.progress import Registered
from zeroeventhub.publisher.progress.registry import Registry

__all__ = ["AsyncRegistering", "Registering"]


class Registering:
    """Note progress through a sync engine."""

    _engine: Engine
    _registry: Registry | None
    _ask: Callable[..., Any]

    def register_progress(
        self, consumer: str, partition: int, cursor: str, *, principal: str = ""
    ) -> None:
        """Note how far a consumer has committed; see `ExtendedFeed.register_progress`."""
        registry = _known(self._registry)
        place = self._ask(registry.checked, consumer, partition, cursor)
        with explained(), self._engine.connect() as connection:
            registry.note_twice(connection, consumer, partition, place, principal)

    def registered(self) -> list[Registered]:
        """Return how far consumers have said that they have come, by name and partition."""
        found: list[Registered] = self._ask(_known(self._registry).registered)
        return found

    def forget_progress(self, consumer: str, *, principal: str | None = None) -> int:
        """Forget a consumer, so that trimming no longer waits for it.

        Args:
            consumer: its name.
            principal: who said how far it has come; None for whoever did.

        Returns:
            How many places of it were known.
        """
        with explained(), self._engine.begin() as connection:
            return _known(self._registry).forget(connection, consumer, principal)


class AsyncRegistering:
    """Note progress through an async engine."""

    _engine: AsyncEngine
    _registry: Registry | None
    _ask: Callable[..., Any]

    async def register_progress(
        self, consumer: str, partition: int, cursor: str, *, principal: str = ""
    ) -> None:
        """Note how far a consumer has committed; see `ExtendedFeed.register_progress`."""
        registry = _known(self._registry)
        place = await self._ask(registry.checked, consumer, partition, cursor)
        with explained():
            async with self._engine.connect() as connection:
                await connection.run_sync(
                    registry.note_twice, consumer, partition, place, principal
                )

    async def registered(self) -> list[Registered]:
        """Return how far consumers have come; see `Registering.registered`."""
        found: list[Registered] = await self._ask(_known(self._registry).registered)
        return found

    async def forget_progress(self, consumer: str, *, principal: str | None = None) -> int:
        """Forget a consumer; see `Registering.forget_progress`."""
        with explained():
            async with self._engine.begin() as connection:
                return await connection.run_sync(_known(self._registry).forget, consumer, principal)


def _known(registry: Registry | None) -> Registry:
    if registry is None:
        raise ConfigurationError(
            "This feed has no place to keep how far consumers have come: "
            "TableFeed(…, progress=Progress())."
        )
    return registry
