"""The `meridian` command: one sub-command per file in engine/commands, loaded when it is called."""

import importlib
import sys

import click

from engine import __version__
from engine.errors import InputError
from engine.inputs import nearest

# name of the sub-command → module of engine.commands that holds it as `command`
COMMANDS = {
    "simulate": "simulate",
    "plan": "plan",
    "train": "train",
    "reproduce": "reproduce",
}
# sub-commands of contracts.md that later versions bring
LATER_COMMANDS = ("sweep", "place", "network", "swap", "prefill", "profile")


class LazyGroup(click.Group):
    """Imports a sub-command only when it runs: `meridian simulate` must not pay for torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"engine.commands.{COMMANDS[cmd_name]}")
        return module.command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in LATER_COMMANDS:
            raise InputError(
                "command", args[0], f"not available in this version; allowed: {', '.join(COMMANDS)}"
            )
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise InputError("command", args[0], "unknown command, " + nearest(args[0], COMMANDS))
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="meridian")
def cli() -> None:
    """Plan, simulate and run the training of one language model across data centres.

    Commands that take a FILE read JSON or YAML from it (or - for standard input), print a table,
    and with --json print one JSON object. Exit status: 0 a result (also "feasible": false),
    1 a check or run failed, 2 bad input, 130 interrupted.
    """


def main() -> None:
    """Entry point: turns bad input into one line on stderr and exit status 2, Ctrl-C into 130."""
    try:
        status = cli(standalone_mode=False)
    except InputError as error:
        _fail(str(error), 2)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(0)
    except click.ClickException as error:
        _fail(" ".join(error.format_message().split()), 2)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted", 130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str, status: int) -> None:
    click.echo(f"meridian: {message}", err=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
