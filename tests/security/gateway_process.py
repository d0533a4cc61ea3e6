"""The site's web process for tests that kill it: reads lines, and answers each with the port of a new one.

One process imports the site, and forks a web process for each line: a kill costs a fork, not an import. It
prints "PID PORT", and ends when its input does.
"""

import os
import socket
import sys

import django

django.setup()

import uvicorn  # noqa: E402  (after the settings are there)

from webapp.asgi import application  # noqa: E402


def serve(listening: socket.socket) -> None:
    """Answer requests until killed."""
    config = uvicorn.Config(application, lifespan="off", log_level="error", loop="asyncio")
    uvicorn.Server(config).run(sockets=[listening])


def main() -> None:
    """Fork a web process for each line of standard input."""
    for _ in sys.stdin:
        listening = socket.create_server(("127.0.0.1", 0))
        child = os.fork()
        if child == 0:
            serve(listening)
            os._exit(0)
        print(child, listening.getsockname()[1], flush=True)
        listening.close()


if __name__ == "__main__":
    main()
