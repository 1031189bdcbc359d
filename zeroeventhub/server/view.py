"""What one reader sees of a feed: what is hidden from it is, to it, not there."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from zeroeventhub.errors import BadRequest, FeedFailure
from zeroeventhub.protocol import (
    EVENT_TYPES,
    EXTENSIONS,
    LAST,
    Extension,
    FeedInfo,
    Page,
    Partition,
    TypeFilter,
)
from zeroeventhub.server.auth import Access, Principal
from zeroeventhub.server.long_poll import Question
from zeroeventhub.server.request import FeedRequest
from zeroeventhub.server.source import NO_PARTITION, Source

__all__ = ["View"]


class View:
    """See of a feed what a reader may.

    Args:
        source: the feed.
        access: keeps the reader to its quota.
        principal: who reads.
    """

    def __init__(self, source: Source, access: Access, principal: Principal) -> None:
        self._source = source
        self._access = access
        self._principal = principal

    async def info(self) -> FeedInfo:
        """Return what the feed says of itself to the reader.

        Raises:
            FeedFailure: the reader may not see all types of events, and the feed cannot tell them
                apart.
        """
        return self._seen(await self._source.info())

    async def counted(self) -> tuple[FeedInfo, int]:
        """Return that, and how many partitions there are, seen or not, as version 1 wants it."""
        info = await self._source.info()
        return self._seen(info), len(info.partitions)

    async def only(self, partition: int | None) -> tuple[FeedInfo, int]:
        """Return what the feed says of itself, and the partition that a request means.

        Args:
            partition: the one that it names; None if it names none.

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
            raise BadRequest(NO_PARTITION)
        return info, partition

    async def read(
        self,
        info: FeedInfo,
        partition: int,
        cursor: str,
        limit: int | None,
        *,
        types: TypeFilter | None = None,
        **options: Any,
    ) -> Page:
        """Read a page of what the reader may see; see `Source.read`."""
        types = self._principal.narrowed(types)
        page = await self._source.read(info, partition, cursor, limit, types=types, **options)
        return self._lasting(page)

    async def read_or_wait(
        self,
        info: FeedInfo,
        partition: int,
        cursor: str,
        limit: int | None,
        *,
        seconds: float,
        request: FeedRequest,
        types: TypeFilter | None = None,
        **options: Any,
    ) -> Page:
        """Read a page of what the reader may see, or wait for it; see `Source.read_or_wait`."""
        page = await self._source.read_or_wait(
            info,
            partition,
            cursor,
            limit,
            seconds=seconds,
            request=request,
            types=self._principal.narrowed(types),
            waiting=self.waiting,
            **options,
        )
        return self._lasting(page)

    def lasting_question(
        self,
        info: FeedInfo,
        partition: int,
        cursor: str,
        limit: int | None,
        *,
        types: TypeFilter | None,
        **options: Any,
    ) -> Question | None:
        """Return what `read` asks for; None if the answer is for nobody else."""
        if self._principal.is_restricted_to_types or cursor == LAST:
            return None
        return self._source.question(info, partition, cursor, limit, types=types, **options)

    async def cursor_of(self, event_id: str, partition: int) -> str:
        """Return the cursor behind an event that the reader may see, by its id."""
        types = self._principal.narrowed(None)
        options = {} if types is None else {"types": types}
        cursor: str = await self._source.call("cursor_of")(event_id, partition, **options)
        return cursor

    async def ask(self, extension: Extension, asked: Mapping[str, Any]) -> Any:
        """Ask the feed what a request for an extension asks for.

        Args:
            extension: one that `info` names to the reader.
            asked: the values of its parameters by name.
        """
        arguments: list[Any] = []
        options: dict[str, Any] = {}
        for parameter in extension.parameters:
            value = asked[parameter.name]
            if parameter.kind == "limit":
                value = self._source.rows(value)
            if parameter.argument:
                options[parameter.argument] = value
            else:
                arguments.append(value)
        if "principal" in extension.context:
            options["principal"] = self._principal.name
        if "partitions" in extension.context and self._principal.partitions is not None:
            options["partitions"] = self._principal.partitions
        return await self._source.call(extension.method)(*arguments, **options)

    def waiting(self) -> AbstractContextManager[None]:
        """Count a request of the reader's for as long as it waits at the head."""
        return self._access.waiting(self._principal)

    def _seen(self, info: FeedInfo) -> FeedInfo:
        if not self._principal.is_restricted:
            return info
        extensions = info.extensions
        if self._principal.is_restricted_to_types and EVENT_TYPES not in extensions:
            raise FeedFailure(
                "A principal may not see all types of events, and this feed cannot tell them "
                "apart, so it shows nothing: name a column of text as the type of its "
                "TableFeed, or give principals without types."
            )
        self._source.warn_of_guesses()
        hidden = {"all", "types"} if self._principal.is_restricted_to_types else {"all"}
        extensions -= {name for name, one in EXTENSIONS.items() if one.needs in hidden}
        may_read = self._principal.may_read
        partitions = tuple(
            _without(partition, may_read) for partition in info.partitions if may_read(partition.id)
        )
        return replace(info, partitions=partitions, extensions=extensions)

    def _lasting(self, page: Page) -> Page:
        """Let nobody keep a page for ever that would be another if the reader's rights were."""
        return replace(page, full=False) if self._principal.is_restricted_to_types else page


def _without(partition: Partition, may_read: Callable[[int], bool]) -> Partition:
    """Describe a partition without a word about those that are hidden."""
    after = partition.starts_after
    return replace(
        partition,
        starts_after=after if after is not None and may_read(after) else None,
        cursor_from=tuple(number for number in partition.cursor_from if may_read(number)),
    )
