"""What can keep the embedded servers from running; each message is one line for the user."""


class ServersError(RuntimeError):
    """The servers cannot start, or have stopped; the message says what to do."""


class AlreadyRunning(ServersError):
    """Another process runs the servers of this folder."""

    def __init__(self, folder: object, pid: int | None) -> None:
        self.pid = pid
        who = f"process {pid}" if pid else "another process"
        super().__init__(f"already running: {who} runs the servers in {folder}; stop it first")


class NotRunning(ServersError):
    """No URLs are given and the embedded servers of this folder are not running."""
