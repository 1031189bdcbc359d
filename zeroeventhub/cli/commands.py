"""The commands, and how an error ends one: with a sentence and an exit code."""

from errno import EPIPE
from importlib.metadata import version
from typing import Any

import click
from sqlalchemy.exc import SQLAlchemyError

from zeroeventhub.cli.append import append
from zeroeventhub.cli.conformance import conformance
from zeroeventhub.cli.console import console
from zeroeventhub.cli.consume import discover, sync, tail
from zeroeventhub.cli.cursors import cursors, lag
from zeroeventhub.cli.dead_letters import dead_letters
from zeroeventhub.cli.export import export
from zeroeventhub.cli.init import init
from zeroeventhub.cli.maintenance import (
    check,
    compact,
    ddl,
    erase,
    horizon,
    progress,
    restore,
    seal,
    tidy,
    trim,
)
from zeroeventhub.cli.output import refusal, write_log
from zeroeventhub.cli.relay import relay
from zeroeventhub.cli.schemas import codegen, schema
from zeroeventhub.cli.serve import serve
from zeroeventhub.cli.tokens import token
from zeroeventhub.errors import (
    ConfigurationError,
    FeedError,
    Halted,
    ProtocolError,
    Unauthorized,
    ZeroEventHubError,
    printable,
)

_LONGEST_REASON = 200
"""How many characters of an exception's text an error repeats."""

_GIVE_CREDENTIALS = (
    " Give the credentials that the feed's owner gave you, such as -H 'Authorization: Bearer …' or "
    "--token-file FILE."
)


class _Commands(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Halted as error:
            # A terminal may show the text of the handler's error; a log may not.
            reason = str(error.__cause__).strip().partition("\n")[0][:_LONGEST_REASON]
            raise click.ClickException(f"{error} {printable(reason)}") from error
        except Unauthorized as error:
            raise _Misuse(f"{error.message}{_GIVE_CREDENTIALS}") from error
        except (ConfigurationError, FeedError, ProtocolError) as error:
            raise _Misuse(str(error)) from error
        except ZeroEventHubError as error:
            raise click.ClickException(str(error)) from error
        except UnicodeError as error:
            raise _Misuse("An argument, or a file that one names, is not UTF-8.") from error
        except OSError as error:
            if error.errno == EPIPE:
                raise  # click ends quietly, as its reader has
            raise click.ClickException(f"The operating system refused: {error}") from error
        except SQLAlchemyError as error:
            raise click.ClickException(refusal(error)) from error


class _Misuse(click.ClickException):
    exit_code = 2


@click.group(
    cls=_Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
@click.version_option(version("zeroeventhub"), prog_name="zeroeventhub")
@click.option("-v", "--verbose", is_flag=True, help="Write retries and other events to stderr.")
def commands(*, verbose: bool) -> None:
    """Stream events from SQL tables over HTTP, without a broker.

    Exit codes: 0 done, 1 failed, 2 the command or its options cannot work.
    """
    write_log(verbose=verbose)


for command in (
    *(append, check, codegen, compact, conformance, console, cursors, ddl, dead_letters, discover),
    *(erase, export, horizon, init, lag, progress, relay, restore, schema, seal, serve, sync),
    *(tail, tidy, token, trim),
):
    commands.add_command(command)
