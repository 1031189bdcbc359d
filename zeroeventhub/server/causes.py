"""What raised an error, told without what it was raised about.

The texts of other people's exceptions have anything in them: SQLAlchemy's the statement with its
parameters, a driver's the server's address or a row, a hook's the token that it refused. Types,
codes and places are enough to find a cause, and are nobody's secret.
"""

import errno
import re
from collections.abc import Hashable, Iterator
from traceback import walk_tb

from zeroeventhub.errors import ZeroEventHubError

__all__ = ["cause_of", "describe"]

MOST_LINKS = 10
"""How many errors of a chain are told."""

MOST_PLACES = 20
"""How many places of an error are told, the innermost ones."""

_CODE = re.compile(r"[0-9A-Z_]{1,40}")
_DRIVERS_OF_MYSQL = {"MySQLdb", "mysql", "pymysql"}


def describe(error: BaseException) -> str:
    """Tell an error and what it was raised from, with their places, in lines of text."""
    lines: list[str] = []
    for link in _chain(error):
        # What is behind the first one is read from the top, as a reason of what is above it.
        lines.append(f"{'because of ' if lines else ''}{_name(link)}{_sentence(link)}")
        lines += [f"    {file}:{line} in {name}" for file, line, name in _places(link)]
    return "\n".join(lines)


def cause_of(error: BaseException) -> Hashable:
    """Return what an error has in common with others of its kind, whatever they are about."""
    return tuple((_name(link), *_places(link)[-1:]) for link in _chain(error))


def _chain(error: BaseException) -> list[BaseException]:
    """Follow an error to what it was raised from, through groups as well."""
    found: list[BaseException] = []
    ahead = [error]
    while ahead and len(found) < MOST_LINKS:
        link = ahead.pop()
        if any(link is known for known in found):
            continue
        found.append(link)
        ahead += reversed([*_members(link), *_origin(link)])
    return found


def _members(error: BaseException) -> tuple[BaseException, ...]:
    return error.exceptions if isinstance(error, BaseExceptionGroup) else ()


def _origin(error: BaseException) -> Iterator[BaseException]:
    origin = error.__cause__
    if origin is None and not error.__suppress_context__:
        origin = error.__context__
    if origin is not None:
        yield origin


def _name(error: BaseException) -> str:
    kind = type(error)
    code = _code(error)
    return f"{kind.__module__}.{kind.__qualname__}" + (f" ({code})" if code else "")


def _code(error: BaseException) -> str:
    """Return the code that a driver or the system gives an error, if it has one."""
    if isinstance(error, OSError):
        return errno.errorcode.get(error.errno or 0, "")
    if type(error).__module__.partition(".")[0] in _DRIVERS_OF_MYSQL:
        (number,) = error.args[:1] or ("",)
        return str(number) if isinstance(number, int) else ""
    code = getattr(error, "sqlstate", None) or getattr(error, "sqlite_errorname", None)
    return code if isinstance(code, str) and _CODE.fullmatch(code) else ""


def _sentence(error: BaseException) -> str:
    """Return what this library says, without what it repeats of other people's texts."""
    if not isinstance(error, ZeroEventHubError):
        return ""
    text = str(error)
    for link in _chain(error)[1:]:
        foreign = str(link)
        if foreign and not isinstance(link, ZeroEventHubError):
            text = text.replace(foreign, type(link).__name__)
    return f": {text}"


def _places(error: BaseException) -> list[tuple[str, int, str]]:
    return [
        (frame.f_code.co_filename, line, frame.f_code.co_qualname)
        for frame, line in walk_tb(error.__traceback__)
    ][-MOST_PLACES:]
