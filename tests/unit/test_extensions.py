"""The rows of extensions, of which requests, routes and checks are made."""

import inspect

from zeroeventhub.extensions import EXTENSIONS
from zeroeventhub.feed import AsyncExtendedFeed, ExtendedFeed


def test_feed_has_a_method_for_each_extension_with_a_path():
    """The method of a row takes its parameters: by position, or by the name that the row gives."""
    for extension in filter(lambda one: one.path, EXTENSIONS.values()):
        for feed in (ExtendedFeed, AsyncExtendedFeed):
            taken = inspect.signature(getattr(feed, extension.method)).parameters
            named = {one.argument for one in extension.parameters if one.argument}
            if extension.verb != "POST":  # there they belong to the body, a batch
                assert named | extension.context <= taken.keys()


def test_rows_of_one_path_differ_in_their_verbs():
    """A request to a path is for one extension, and no parameter refuses its own default."""
    found = [(one.path, one.verb) for one in EXTENSIONS.values() if one.path]
    assert len(found) == len(set(found))
    parameters = [each for one in EXTENSIONS.values() for each in one.parameters]
    assert not any(each.default in each.refused for each in parameters)
