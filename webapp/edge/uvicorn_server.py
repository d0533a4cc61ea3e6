"""`python -m webapp.edge.uvicorn_server [--host 127.0.0.1] [--port 8000]`: the web process.

A listening socket that is standard input, as the supervisor and inetd give it, takes the place of host and
port. The supervisor's outlives the web process: while one has died and the next starts, requests wait and
nobody is refused.
"""

import argparse
import os
import socket
import stat

import uvicorn


def main() -> None:
    """Serve the site until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m webapp.edge.uvicorn_server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    # uvicorn would believe whoever asks from this machine.
    proxies = os.environ.get("MERIDIAN_PROXY_IPS", "")
    config = uvicorn.Config(
        "webapp.asgi:application",
        host=options.host,
        port=options.port,
        http="webapp.edge.connections:BoundedProtocol",
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        # Of a head: the address of a swap plan has its measured layers.
        h11_max_incomplete_event_size=64 << 10,
        access_log=False,  # the site logs requests itself
        log_level="warning",
        # Open sockets would hold a shutdown up for ever; a busy browser that answers late keeps its own.
        timeout_graceful_shutdown=2,
        ws_ping_timeout=60,
    )
    listener = _given()
    uvicorn.Server(config).run(sockets=[listener] if listener else None)


def _given() -> socket.socket | None:
    """The listening socket that is standard input, if it is one."""
    if not stat.S_ISSOCK(os.fstat(0).st_mode):
        return None
    listener = socket.socket(fileno=os.dup(0))
    if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        listener.close()
        return None
    # uvicorn closes its own when it is asked to end, and nothing else may keep the port from the next.
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    return listener


if __name__ == "__main__":
    main()
