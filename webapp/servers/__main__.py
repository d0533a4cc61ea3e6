"""`python -m webapp.servers`: the two servers alone, until Ctrl-C, for manage.py without the site."""

import signal
import sys
import time

from webapp.servers.embedded import EmbeddedServers
from webapp.servers.errors import ServersError
from webapp.servers.places import var_folder


def main() -> int:
    """Run both servers until interrupted; 2 where they cannot start, 1 where one dies."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with EmbeddedServers(var_folder()) as servers:
            sys.stderr.write(f"PostgreSQL and Valkey run in {servers.var}; Ctrl-C stops them\n")
            while all(one.child is not None and one.child.poll() is None for one in servers.servers):
                time.sleep(0.3)
            sys.stderr.write("a server died; see the logs in var/log\n")
            return 1
    except ServersError as error:
        sys.stderr.write(f"meridian: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
