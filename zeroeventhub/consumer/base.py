"""What the sync and the async consumer are made from."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import ClassVar, Generic, TypeVar

from zeroeventhub.client import AsyncClient, Client
from zeroeventhub.consumer.config import Config, Failures
from zeroeventhub.consumer.follower import Follower
from zeroeventhub.consumer.log import Log
from zeroeventhub.consumer.observer import Observer
from zeroeventhub.consumer.store.store import CursorStore
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import FIRST, Event, TypeFilter
from zeroeventhub.wire.cloud_event import event_identity, event_key

__all__ = ["BaseConsumer"]

_AnyClient = TypeVar("_AnyClient", Client, AsyncClient)


class BaseConsumer(Generic[_AnyClient]):
    """Hold what a consumer was told, and whether it was told to stop."""

    _client_type: ClassVar[type[Client | AsyncClient]]

    def __init__(
        self,
        client: _AnyClient,
        store: CursorStore,
        name: str,
        *,
        start: str = FIRST,
        partitions: Collection[int] | None = None,
        follow: bool = True,
        limit: int | None = None,
        types: TypeFilter | None = None,
        poll_interval: float = 0.5,
        attempts: int | None = None,
        concurrency: int = 8,
        lanes: int = 1,
        lease: float = 30.0,
        failures: Failures = Failures(),  # noqa: B008 - it cannot be changed
        key: Callable[[Event], str | None] = event_key,
        identity: Callable[[Event], str | None] = event_identity,
        inbox: bool | None = None,
        inbox_days: float = 7.0,
        observer: Observer = Observer(),  # noqa: B008 - it holds nothing
        register_progress: bool = False,
        synchronous_commit: bool = True,
    ) -> None:
        given: object = client
        if isinstance(given, Client | AsyncClient) and not isinstance(given, self._client_type):
            raise ConfigurationError(
                f"The client of {type(self).__name__} is of the class "
                f"{self._client_type.__name__}, not {type(given).__name__}."
            )
        self.client: _AnyClient = client
        self.store = store
        self.name = name
        self._config = Config(
            name=name,
            store=store,
            start=start,
            partitions=partitions,
            follow=follow,
            limit=limit,
            types=types,
            poll_interval=poll_interval,
            attempts=attempts,
            concurrency=concurrency,
            lanes=lanes,
            lease=lease,
            failures=failures,
            key=key,
            identity=identity,
            inbox=inbox,
            inbox_days=inbox_days,
            observer=observer,
            register_progress=register_progress,
            synchronous_commit=synchronous_commit,
        )
        self._log = Log(self._config)
        self._was_stopped = False
        self._wakes: list[Callable[[], object]] = []

    def stop(self) -> None:
        """End before the next page; a consumer that was stopped stays stopped.

        A Consumer may be stopped from any thread, and by the handler of a signal; an
        AsyncConsumer in its event loop.
        """
        self._was_stopped = True
        for wake in tuple(self._wakes):
            wake()

    def _is_stopped(self) -> bool:
        return self._was_stopped

    @contextmanager
    def _woken_by(self, wake: Callable[[], object]) -> Iterator[None]:
        """Call a function when stopped, for the length of a block."""
        self._wakes.append(wake)
        try:
            yield
        finally:
            self._wakes.remove(wake)

    def _follower(self) -> Follower:
        """Decide how to read all partitions in turn."""
        return Follower(
            partitions=self._config.partitions,
            forever=self._config.follow,
            poll_interval=self._config.poll_interval,
            attempts=self._config.attempts,
            stopped=self._is_stopped,
        )
