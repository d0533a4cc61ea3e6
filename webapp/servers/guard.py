"""`python guard.py SIGNAL PARENT COMMAND…`: runs COMMAND and stops it when PARENT is gone.

For systems without PR_SET_PDEATHSIG (macOS), where `webapp.servers.process.spawn` puts it before each child.
"""

import os
import signal
import subprocess
import sys
import time
from types import FrameType

LOOK_S = 0.5
PATIENCE_S = 10.0


def main(arguments: list[str]) -> int:
    """Run the command with signals passed on; return its exit status."""
    number, parent, command = signal.Signals[arguments[0]], int(arguments[1]), arguments[2:]
    child = subprocess.Popen(command)

    def pass_on(received: int, _frame: FrameType | None) -> None:
        child.send_signal(received)

    for passed in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(passed, pass_on)
    while child.poll() is None:
        if os.getppid() != parent:
            child.send_signal(number)
            try:
                child.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                child.kill()
        time.sleep(LOOK_S)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
