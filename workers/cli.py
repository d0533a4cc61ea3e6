"""What the workers add to the `meridian` command (entry points `meridian.commands`)."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from engine import __version__
from engine.errors import InputError
from workers.config import DEVICES, NAME, port_range


@click.group()
def agent() -> None:
    """Join this machine to a site as a node, and run its agent.

    Add the node on the site; its page shows the command to copy, with a token that is good once and for an
    hour. `join` keeps the node's own credentials in var/nodes/<name>.env (MERIDIAN_VAR says where var
    is), and `run` starts its agent with them.
    """


@agent.command()
@click.argument("url")
@click.option(
    "--token", required=True, help="Join token from the node's page. It works once, within an hour."
)
@click.option(
    "--host", help="Address at which other nodes reach this one. [the address used to reach the site]"
)
@click.option("--ports", help="Ports on which they reach it, for example 29500-29599. [the site's range]")
@click.option(
    "--gpus",
    type=click.IntRange(1, 1024),
    help="Number of GPUs to offer. [the CUDA devices, else the site's number]",
)
@click.option("--device", type=click.Choice(DEVICES), help="Device kind of the GPUs. [the site's setting]")
@click.option("--run", "start", is_flag=True, help="Start the agent at once, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def join(
    url: str,
    token: str,
    host: str | None,
    ports: str | None,
    gpus: int | None,
    device: str | None,
    start: bool,
    as_json: bool,
) -> None:
    """Make this machine a node of the site at URL."""
    from workers import hardware
    from workers import join as joining

    address = joining.site_address(url)
    if ports is not None:
        port_range(ports, "--ports")
    devices = hardware.look_apart(device or "cuda")
    host = host or joining.own_address(address)
    joining.check_host(host)
    body: dict[str, Any] = {
        "token": token,
        "version": __version__,
        "host": host,
        "ports": ports,
        "gpus": gpus,
        "device": device,
        "hardware": devices,
    }
    answer = joining.ask(url, body)
    path = joining.write_environment(var_folder(), answer["environment"])
    name = answer["environment"]["MERIDIAN_NODE"]
    if as_json:
        click.echo(
            json.dumps({"node": name, "credentials": str(path), "site_version": answer.get("version")})
        )
    else:
        click.echo(f"This machine is node {name}. Its credentials are in {path}.")
        click.echo("Starting its agent." if start else f"Start its agent: meridian agent run {name}")
    if start:
        _run(name)


@agent.command()
@click.argument("name")
def run(name: str) -> None:
    """Run the agent of node NAME, which has joined, until Ctrl-C or SIGTERM.

    Ctrl-C (SIGINT) stops the ranks too. SIGTERM leaves them at work for the next agent, which must come
    within MERIDIAN_KEEP_RANKS_S (120) seconds.
    """
    _run(name)


def _run(name: str) -> None:
    from workers.join import env_file, read_environment

    if not NAME.fullmatch(name):
        raise InputError("NAME", name, "lower-case letters, digits and inner hyphens, at most 40")
    os.environ.update(read_environment(env_file(var_folder(), name)))
    os.environ["MERIDIAN_VAR"] = str(var_folder())
    from workers.agent import main

    sys.exit(main())


@click.command()
@click.argument("name", required=False)
@click.option("--site", metavar="URL", help="Also ask the site at URL whether it is ready.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(name: str | None, site: str | None, as_json: bool) -> None:
    """Check this machine, and say what to do about what is wrong.

    With NAME the node of that name, which has joined: versions, ports, disk, broker, clock, devices. Without
    NAME the only node in var/nodes, or where there is none the machine alone. Exit status 1 where something
    fails.
    """
    from workers.doctor import examine, text_of

    lines = examine(var_folder(), name, site)
    if as_json:
        ok = all(line.level != "fail" for line in lines)
        click.echo(json.dumps({"ok": ok, "checks": [asdict(line) for line in lines]}))
    else:
        click.echo(text_of(lines))
    sys.exit(1 if any(line.level == "fail" for line in lines) else 0)


def var_folder() -> Path:
    """The installation's data: MERIDIAN_VAR, or var/ in the current folder."""
    return Path(os.environ.get("MERIDIAN_VAR") or "var").expanduser().absolute()
