"""The `meridian` command: one sub-command per file in engine/commands, loaded when it is called."""

import errno
import gc
import importlib
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from engine import __version__
from engine.errors import InputError
from engine.inputs import nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# name of the sub-command → module of engine.commands that holds it as `command`
COMMANDS = {
    "simulate": "simulate",
    "model": "model",
    "predict": "predict",
    "sweep": "sweep",
    "analyze": "analyze",
    "plan": "plan",
    "cross-dc": "cross_dc",
    "place": "place",
    "network": "network",
    "data": "data",
    "train": "train",
    "export": "export",
    "reproduce": "reproduce",
    "swap": "swap",
    "prefill": "prefill",
    "profile": "profile",
    "probe": "probe",
}


# Commands from outside the engine: name → click command. The engine knows no more of them than that.
GROUP = "meridian.commands"


def added_commands() -> "dict[str, EntryPoint]":
    """The commands that installed packages add, by name; none of ours can be replaced."""
    from importlib.metadata import entry_points  # it reads what is installed: not for a command of ours

    points: Iterable[EntryPoint] = entry_points(group=GROUP)
    return {point.name: point for point in points if point.name not in COMMANDS}


def _missing(command: str, error: ModuleNotFoundError) -> Exception:
    """What to say where a package that `command` imports is missing: what to install, or a fault of ours."""
    if str(error.name).partition(".")[0] in ("engine", "numpy"):
        return error
    extra = "data" if command == "data" else "analyze" if error.name == "pyarrow" else "runtime"
    allowed = f"needs {error.name}, which is not installed: pip install 'meridian[{extra}]'"
    return InputError("command", command, allowed)


class LazyGroup(click.Group):
    """Imports a sub-command only when it runs: `meridian simulate` must not pay for torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *sorted(added_commands())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return self._added(cmd_name)
        try:
            module = importlib.import_module(f"engine.commands.{COMMANDS[cmd_name]}")
        except ModuleNotFoundError as error:
            raise _missing(cmd_name, error) from None
        command: click.Command = module.command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a sub-command. Some import torch only then: their line in the list of all needs none."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            raise _missing(str(ctx.invoked_subcommand), error) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of all; one that cannot run here says what it needs."""
        rows = []
        width = formatter.width - 6 - max(map(len, self.list_commands(ctx)))  # as click lays it out
        for name in self.list_commands(ctx):
            try:
                command = self.get_command(ctx, name)
            except InputError as error:
                rows.append((name, error.allowed))
            else:
                rows.append((name, command.get_short_help_str(width) if command else ""))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def _added(self, name: str) -> click.Command | None:
        point = added_commands().get(name)
        if point is None:
            return None
        try:
            command = point.load()
        except ImportError as error:
            raise InputError(
                "command",
                name,
                f"needs packages that are not installed ({error}): pip install 'meridian[node]'",
            ) from None
        if not isinstance(command, click.Command):
            raise InputError("command", name, f"{point.value} is not a click command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            known = self.list_commands(ctx)
            if args[0] not in known:
                raise InputError("command", args[0], "unknown command, " + nearest(args[0], known))
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
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # else it reads what packages are installed
    gc.set_threshold(100_000, 20, 20)  # what imports make stays: looking through it is a tenth of a command
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
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _fail("no space left for the output", 1)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str, status: int) -> None:
    click.echo(f"meridian: {message}", err=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
