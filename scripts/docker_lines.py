"""Executes every RUN, ENTRYPOINT, CMD and HEALTHCHECK line of docker/ without a container engine; needs root.

    python -m scripts.docker_lines --python /prefix/of/python3.12 [--target site] [--target node]

Each stage of docker/Dockerfile becomes a folder that stands for its file system (scripts/docker_room.py);
COPY obeys .dockerignore. Then the images are run as the compose files say, against a PostgreSQL and a Valkey
of this machine, until each health check passes, and stopped with SIGTERM. No image is built, and nothing is
said about the base images. Exit status: 0 every line worked, 1 one did not.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from scripts.docker_build import Builder, LineFailed
from scripts.docker_parts import PARTS


def main() -> int:
    """Execute the lines; see the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--python", type=Path, required=True, help="prefix of the Python that stands for the base image's"
    )
    parser.add_argument("--target", action="append", choices=("site", "node"), help="(both)")
    parser.add_argument(
        "--show", type=Path, action="append", default=[], help="a folder that RUN lines see: a package index"
    )
    parser.add_argument(
        "--place", type=Path, help="where the folders are made, and left (a temporary one, removed)"
    )
    options = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("unshare"):
        print(
            "SKIPPED: only root can give a line a file system of its own (unshare, chroot)", file=sys.stderr
        )
        return 1
    place = options.place or Path(tempfile.mkdtemp(prefix="docker-lines-", dir="/var/tmp"))
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(0o755)
    passed = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    try:
        builder = Builder(place, options.python, options.show, passed)
        for target in options.target or ("site", "node"):
            PARTS[target](builder.image(target), place)
    except LineFailed as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        if options.place is None:
            shutil.rmtree(place, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
