"""A feed with a principal's permissions: what it may not read is reported as absent."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from zeroeventhub.errors import BadRequest, FeedFailure, NotFound, TokenChanged
from zeroeventhub.protocol import (
    EVENT_TYPES,
    EXTENSIONS,
    LAST,
    Extension,
    FeedInfo,
    Partition,
    TypeFilter,
)
from zeroeventhub.server.auth import Principal, Quotas
from zeroeventhub.server.feed_runner import FeedRunner
from zeroeventhub.server.request import PageRequest

__all__ = ["AuthorizedFeed", "expect_extension", "expect_partition"]

_NO_PARTITION = "The feed has no such partition."
"""The text for a partition that does not exist, and for one that the principal may not see."""


class AuthorizedFeed:
    """Apply a principal's permissions: partitions and types it may not read are reported as absent.

    Args:
        runner: calls the feed.
        quotas: keeps the principal to its quota.
        principal: the reader.
    """

    def __init__(self, runner: FeedRunner, quotas: Quotas, principal: Principal) -> None:
        self._runner = runner
        self._quotas = quotas
        self._principal = principal

    async def info(self) -> FeedInfo:
        """Return the feed's description, of what the principal may see.

        Raises:
            FeedFailure: the principal may not see all types of events, and the feed cannot tell
                them apart.
        """
        return self._visible(await self._runner.info())

    async def counted(self) -> tuple[FeedInfo, int]:
        """Return that, and the number of all partitions, which version 1 of the protocol needs."""
        info = await self._runner.info()
        return self._visible(info), len(info.partitions)

    async def only(self, partition: int | None) -> tuple[FeedInfo, int]:
        """Return the feed's description, and the partition that a request means.

        Args:
            partition: the partition in the request; None if it has none.

        Raises:
            BadRequest: there is no such partition, or it has to be named.
        """
        info = await self.info()
        known = [one.id for one in info.partitions]
        if partition is None and len(known) == 1:
            return info, known[0]
        if partition is None:
            raise BadRequest("The feed has several partitions: say partition=… as well.")
        if partition not in known:
            raise BadRequest(_NO_PARTITION)
        return info, partition

    def page(
        self,
        partition: int,
        cursor: str,
        limit: int | None,
        *,
        types: TypeFilter | None = None,
        stop: str | None = None,
        each: bool = False,
    ) -> PageRequest:
        """Return the page to request from the feed, within the principal's permissions."""
        seen = self._principal.narrowed(types)
        return PageRequest(partition, cursor, self._runner.rows(limit), seen, stop, each)

    def is_shared(self, wanted: PageRequest) -> bool:
        """Return whether all principals get the same page for the same request."""
        return not self._principal.is_restricted_to_types and wanted.cursor != LAST

    def waiting(self) -> AbstractContextManager[None]:
        """Count a request of the principal's for as long as it waits at the head."""
        return self._quotas.counted(self._principal, "waiters")

    async def cursor_of(self, event_id: str, partition: int) -> str:
        """Return the cursor after an event that the principal may see, by its id."""
        types = self._principal.narrowed(None)
        options = {} if types is None else {"types": types}
        cursor: str = await self._runner.call("cursor_of", event_id, partition, **options)
        return cursor

    async def ask(self, extension: Extension, asked: Mapping[str, Any]) -> Any:
        """Call the feed's method of an extension with a request's parameters.

        Args:
            extension: one that `info` shows to the principal.
            asked: the values of its parameters by name.
        """
        arguments: list[Any] = []
        options: dict[str, Any] = {}
        for parameter in extension.parameters:
            value = asked[parameter.name]
            if parameter.kind == "limit":
                value = self._runner.rows(value)
            if parameter.argument:
                options[parameter.argument] = value
            else:
                arguments.append(value)
        if "principal" in extension.context:
            options["principal"] = self._principal.name
        if "partitions" in extension.context and self._principal.partitions is not None:
            options["partitions"] = self._principal.partitions
        return await self._runner.call(extension.method, *arguments, **options)

    def _visible(self, info: FeedInfo) -> FeedInfo:
        if not self._principal.is_restricted:
            return info
        hidden = {"all"}
        if self._principal.is_restricted_to_types:
            hidden = {"all", "types"}
            if EVENT_TYPES not in info.extensions:
                raise FeedFailure(
                    "A principal may not see all types of events, and this feed cannot tell them "
                    "apart, so it shows nothing: name a column of text as the type of its "
                    "TableFeed, or give principals without types."
                )
        self._runner.warn_of_guesses()
        may_read = self._principal.may_read
        return replace(
            info,
            partitions=tuple(
                _without_hidden(partition, may_read)
                for partition in info.partitions
                if may_read(partition.id)
            ),
            extensions=info.extensions
            - {name for name, extension in EXTENSIONS.items() if extension.needs in hidden},
        )


def _without_hidden(partition: Partition, may_read: Callable[[int], bool]) -> Partition:
    """Return a partition's description without references to hidden partitions."""
    after = partition.starts_after
    return replace(
        partition,
        starts_after=after if after is not None and may_read(after) else None,
        cursor_from=tuple(number for number in partition.cursor_from if may_read(number)),
    )


def expect_partition(info: FeedInfo, token: str, partition: int) -> None:
    """Check a request's token and partition.

    Raises:
        TokenChanged: the feed has another token by now.
        BadRequest: there is no such partition.
    """
    if token != info.token:
        raise TokenChanged(
            f"The feed's token is {info.token!r}: it changes with the partitions. A GET of the "
            "feed's address without parameters shows both."
        )
    for known in info.partitions:
        if known.id == partition:
            return
    raise BadRequest(_NO_PARTITION)


def expect_extension(info: FeedInfo, extension: str) -> None:
    """Check that the feed has an extension.

    Raises:
        NotFound: it does not.
    """
    if extension not in info.extensions:
        raise NotFound(f"This feed does not have the extension {extension}.")
