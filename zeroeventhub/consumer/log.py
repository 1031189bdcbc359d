"""What a consumer says of its work: to the log, and to who observes it."""

import logging
from typing import Any

from zeroeventhub.consumer.config import Config
from zeroeventhub.consumer.steps import Pause
from zeroeventhub.errors import Halted, LeaseLost, TokenChanged, ZeroEventHubError

__all__ = ["Log"]

_log = logging.getLogger("zeroeventhub.consumer")


class Log:
    """Tell what happens, without data of events and without texts that may hold them.

    Args:
        config: names the consumer, and who observes it.
    """

    def __init__(self, config: Config) -> None:
        self._name = config.name
        self._observer = config.observer

    def waits(self, pause: Pause, partition: int | None = None) -> None:
        """Tell of a pause, if it is for an error; what a handler raised is named by its kind."""
        error = pause.reason
        if error is None:
            return
        _log.warning(
            "%s Trying again in %.1f s.",
            _sentence(error),
            pause.seconds,
            extra=self._where(partition),
        )
        self._observer.waited(self._name, partition, error, pause.seconds)

    def fenced(self, partition: int, error: Exception) -> None:
        """Tell of a commit that was refused."""
        _log.info("%s", error, extra=self._where(partition))
        self._observer.fenced(self._name, partition)

    def ended(self, partition: int, error: Exception) -> None:
        """Tell of an error that ended the reading of a partition."""
        if isinstance(error, TokenChanged | LeaseLost):
            _log.info("%s", error, extra=self._where(partition))
            return
        _log.error("%s", _sentence(error), extra=self._where(partition))
        if isinstance(error, Halted):
            self._observer.halted(self._name, partition, error)

    def holds(self, partitions: frozenset[int]) -> None:
        """Tell which leases are held now."""
        _log.debug("Leases are held now: %s", sorted(partitions), extra=self._where(None))
        self._observer.held(self._name, partitions)

    def could_not_tell(self, error: Exception) -> None:
        """Tell that the publisher was not told what has been committed."""
        _log.warning(
            "The publisher was not told how far this consumer has come: %s",
            _sentence(error),
            extra=self._where(None),
        )

    def keeps_leases(self, error: Exception) -> None:
        """Tell that leases could not be given back, and so have to run out."""
        _log.warning(
            "The leases could not be given back, and run out by themselves: %s",
            _sentence(error),
            extra=self._where(None),
        )

    def _where(self, partition: int | None) -> dict[str, Any]:
        return {"consumer": self._name, "partition": partition}


def _sentence(error: Exception) -> str:
    """Say what happened; of what a handler or a driver raised, only its kind is sure to be safe."""
    if isinstance(error, ZeroEventHubError):
        text = str(error)
        return text if text.endswith((".", "!", "?")) else f"{text}."
    return f"{type(error).__name__} was raised."
