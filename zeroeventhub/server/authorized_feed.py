"""A feed with a principal's permissions: what it may not read is reported as absent."""

from collections.abc import Mapping
from dataclasses import replace

from zeroeventhub.errors import BadRequest, FeedFailure, NotFound
from zeroeventhub.protocol import EVENT_TYPES, EXTENSIONS, FeedInfo
from zeroeventhub.server.auth import Principal
from zeroeventhub.server.request import NO_PARTITION, number_in


def visible_info(info: FeedInfo, principal: Principal) -> FeedInfo:
    """Return a feed's description, of what a principal may see."""
    hidden, may_read = {"all"}, principal.may_read
    if principal.types is not None:
        hidden = {"all", "types"}
        if EVENT_TYPES not in info.extensions:
            raise FeedFailure(
                "A principal may not see all types of events, and this feed cannot tell them "
                "apart, so it shows nothing: name a column of text as the type of its "
                "TableFeed, or give principals without types."
            )
    partitions = []
    for partition in info.partitions:
        after = partition.starts_after
        if may_read(partition.id):
            shown = replace(
                partition,
                starts_after=after if after is not None and may_read(after) else None,
                cursor_from=tuple(filter(may_read, partition.cursor_from)),
            )
            partitions.append(shown)
    extensions = info.extensions - {
        name for name, extension in EXTENSIONS.items() if extension.needs in hidden
    }
    return replace(info, partitions=tuple(partitions), extensions=extensions)


def only_partition(info: FeedInfo, query: Mapping[str, str]) -> int:
    """Return the partition of a request, which may leave it out if the feed has only one."""
    known = [one.id for one in info.partitions]
    if "partition" not in query:
        if len(known) == 1:
            return known[0]
        raise BadRequest("The feed has several partitions: say partition=… as well.")
    partition = number_in(query["partition"], "partition")
    if partition not in known:
        raise BadRequest(NO_PARTITION)
    return partition


def expect_extension(info: FeedInfo, extension: str) -> None:
    """Raise if the feed does not have an extension."""
    if extension not in info.extensions:
        raise NotFound(f"This feed does not have the extension {extension}.")
