"""Files that only the user of this process may read: logs, ledgers, spools."""

import os


def private(path: str, flags: int) -> int:
    """An `opener` of `open`: a file that it makes has mode 0600, whatever the umask."""
    return os.open(path, flags, 0o600)
