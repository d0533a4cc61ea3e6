"""Executes the stages of docker/Dockerfile, each in a room of its own (scripts/docker_room.py)."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from subprocess import Popen
from types import MappingProxyType

from scripts.docker_room import Room, context_files
from scripts.dockerfile import Instruction, Stage, parse, substitute

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docker/Dockerfile"
RUN_WITHIN_S = 1500


class LineFailed(Exception):
    """A line ended with another status than 0; its last output is the message."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """A stage as far as it is executed."""

    room: Room
    env: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "root"
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    probe: tuple[str, ...] = ()

    def start(self, argv: Sequence[str], env: Mapping[str, str] = MappingProxyType({})) -> "Popen[str]":
        """Run `argv` as a container of the image would, with `env` besides its own environment."""
        whole = {**self.env, **env, "HOME": "/var/lib/meridian"}
        return self.room.start(argv, env=whole, folder=self.folder, user=self.user)


class Builder:
    """Executes the stages that are asked for, each once."""

    def __init__(self, place: Path, python: Path, shown: list[Path], passed: dict[str, str]) -> None:
        _, stages = parse(FILE)
        self.stages = {stage.name: stage for stage in stages}
        self.images: dict[str, Image] = {}
        self._place = place
        self._python = python
        self._shown = shown
        self._passed = passed

    def image(self, name: str) -> Image:
        """The stage `name`, executed with everything that it stands on."""
        if name not in self.images:
            self.images[name] = self._build(self.stages[name])
        return self.images[name]

    def _build(self, stage: Stage) -> Image:
        room = Room(self._place / stage.name, self._shown)
        if stage.base in self.stages:
            base = self.image(stage.base)
            room.copy_of(base.room)
            image = replace(base, room=room)
        else:
            room.furnish(self._python)
            # PATH and nothing else: what python:…-slim sets.
            image = Image(
                room=room, env={"PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"}
            )
        arguments: dict[str, str] = {}
        for one in stage.instructions:
            image = self._step(image, one, arguments)
        return image

    def _step(self, image: Image, one: Instruction, arguments: dict[str, str]) -> Image:
        text = one.text if one.word in ("RUN", "CMD") else substitute(one.text, {**arguments, **image.env})
        match one.word:
            case "ARG":
                name, _, default = text.partition("=")
                arguments[name] = default.strip('"')
            case "ENV":
                pairs = dict(part.split("=", 1) for part in text.split())
                return replace(image, env={**image.env, **pairs})
            case "WORKDIR":
                image.room.inside(text).mkdir(parents=True, exist_ok=True)
                return replace(image, folder=text)
            case "USER":
                return replace(image, user=text)
            case "COPY":
                self._copy(image, one, text)
            case "RUN":
                self._run(image, one, arguments)
            case "ENTRYPOINT":
                return replace(image, entrypoint=tuple(one.argv or ()), command=())
            case "CMD":
                return replace(image, command=tuple(one.argv or ()))
            case "HEALTHCHECK":
                probe = replace(one, text=text.removeprefix("CMD").strip()).argv
                return replace(image, probe=tuple(probe or ()))
        return image

    def _copy(self, image: Image, one: Instruction, text: str) -> None:
        *sources, target = text.split()
        into = target.endswith("/") or len(sources) > 1
        target = str(Path(image.folder) / target)
        owner = image.room.numbers_of(one.flags["chown"]) if "chown" in one.flags else None
        for source in sources:
            files = (
                self.image(one.flags["from"]).room.inside(source)
                if "from" in one.flags
                else context_files(ROOT, source, self._place)
            )
            image.room.copy_in(files, target, owner=owner, into=into)

    def _run(self, image: Image, one: Instruction, arguments: dict[str, str]) -> None:
        began = time.monotonic()
        env = {"HOME": "/root", **self._passed, **arguments, **image.env}
        argv = one.argv or ["/bin/sh", "-c", one.text]
        process = image.room.start(argv, env=env, folder=image.folder, user=image.user)
        output, _ = process.communicate(timeout=RUN_WITHIN_S)
        say(f"{FILE.name}:{one.line} RUN {one.text}", process.returncode, time.monotonic() - began, output)


def say(what: str, status: int, seconds: float, output: str = "") -> None:
    """One line of the report. Raises LineFailed where the status is not 0."""
    short = what if len(what) <= 100 else f"{what[:97]}…"
    print(f"{'ok  ' if status == 0 else 'FAIL'}  {short}  ({seconds:.1f} s)", flush=True)
    if status:
        raise LineFailed(f"{what}\nstatus {status}\n{output[-3000:]}")
