"""The `meridian` command: one sub-command per file in engine/commands, loaded when it is called."""

import errno
import gc
import importlib
import os
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from engine import __version__
from engine.errors import InputError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class Listed(NamedTuple):
    """A command as the list of all shows it, which imports none of them.

    module : of engine.commands; it holds the command as `command`.
    text : the first sentence of the command's own help.
    needs : packages outside the bare install without which the module cannot be imported.
    """

    module: str
    text: str
    needs: tuple[str, ...] = ()


COMMANDS = {
    "simulate": Listed("simulate", "Simulate pipeline schedules on one DP-cell."),
    "model": Listed("model", "Count a model's parameters, FLOPs and bytes."),
    "predict": Listed(
        "predict", "Predict the iteration time and memory of given layouts from measured layers."
    ),
    "sweep": Listed("sweep", "Sweep one parameter of a scenario over values and policies."),
    "analyze": Listed("analyze", "Say where the time of a measured run went."),
    "plan": Listed("plan", "Choose data centres and the number of DP-cells for a training job."),
    "cross-dc": Listed("cross_dc", "Compare data and pipeline parallelism across data centres."),
    "place": Listed("place", "Place the stages of pipelines on devices whose links differ."),
    "network": Listed(
        "network", "Design the network inside a data centre: rail-only compared with rail-optimised."
    ),
    "data": Listed(
        "data", "Prepare documents for training, and look at what a run sees of them.", ("xxhash", "jinja2")
    ),
    "train": Listed(
        "train", "Train a model across data centres that are emulated on this machine.", ("xxhash",)
    ),
    "export": Listed(
        "export", "Write the model of a checkpoint as safetensors, config.json and tokenizer.", ("xxhash",)
    ),
    "reproduce": Listed("reproduce", "Compute the figures that the papers print, and compare them."),
    "swap": Listed("swap", "Cut a model into sub-models that swap through one GPU while others load."),
    "prefill": Listed("prefill", "Prefill prompts in the bubbles of training."),
    "profile": Listed("profile", "Measure the stages of a model on this machine, one after another."),
    "probe": Listed(
        "probe",
        "Measure a link: its round trip time, and its rate by number of TCP connections.",
        ("xxhash",),
    ),
}


# Commands from outside the engine: name → click command. The engine knows no more of them than that.
GROUP = "meridian.commands"


def added_commands() -> "dict[str, EntryPoint]":
    """The commands that installed packages add, by name; none of ours can be replaced."""
    from importlib.metadata import entry_points  # it reads what is installed: not for a command of ours

    points: Iterable[EntryPoint] = entry_points(group=GROUP)
    return {point.name: point for point in points if point.name not in COMMANDS}


def _needs(command: str, package: str) -> str:
    """What to say of a command that imports a package which is not installed."""
    extra = "data" if command == "data" else "analyze" if package == "pyarrow" else "runtime"
    return f"needs {package}, which is not installed: pip install 'meridian[{extra}]'"


def _missing(command: str, error: ModuleNotFoundError) -> Exception:
    """What to say where a module that `command` imports is missing: what to install, or a fault of ours."""
    if str(error.name).partition(".")[0] in ("engine", "numpy"):
        return error
    return InputError("command", command, _needs(command, str(error.name)))


class LazyGroup(click.Group):
    """Imports a sub-command only when it runs: `meridian simulate` must not pay for torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *sorted(added_commands())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return self._added(cmd_name)
        try:
            module = importlib.import_module(f"engine.commands.{COMMANDS[cmd_name].module}")
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
        """The list of all; one that cannot run here says what it needs. No command of ours is imported."""
        names = self.list_commands(ctx)
        width = formatter.width - 6 - max(map(len, names))  # as click lays it out
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._line(name, width)) for name in names])

    def _line(self, name: str, width: int) -> str:
        """What the list says of a command, at most `width` characters of its help."""
        if name in COMMANDS:
            _, text, needs = COMMANDS[name]
            for package in needs:
                if find_spec(package) is None:
                    return _needs(name, package)
            return click.Command(name, help=text).get_short_help_str(width)
        try:
            command = self._added(name)
        except InputError as error:
            return error.allowed
        return command.get_short_help_str(width) if command else ""

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
                from engine.inputs import nearest  # it reads documents: not for a command that exists

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
