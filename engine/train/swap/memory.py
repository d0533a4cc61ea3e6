"""The device's memory: all allocations are counted here first, so the limit holds on every device."""

import threading

WAIT_S = 600.0  # no transfer out of a device takes so long


class DeviceMemory:
    """`capacity_bytes` of device memory; what does not fit waits until others give theirs back.

    Attributes
    ----------
    peak_bytes : most that was taken at once.
    """

    def __init__(self, capacity_bytes: float) -> None:
        self.capacity_bytes = capacity_bytes
        self.peak_bytes = 0.0
        self._used = 0.0
        self._changed = threading.Condition()

    def take(self, nbytes: float) -> None:
        """Take room, when there is some.

        Raises
        ------
        MemoryError
            It is more than the device has, or nothing made room for it.
        """
        with self._changed:
            fits = nbytes <= self.capacity_bytes and self._changed.wait_for(
                lambda: self._used + nbytes <= self.capacity_bytes, WAIT_S
            )
            if not fits:
                raise MemoryError(
                    f"{nbytes:.6g} bytes do not fit on a device of {self.capacity_bytes:.6g} bytes, of which "
                    f"{self._used:.6g} are taken"
                )
            self._used += nbytes
            self.peak_bytes = max(self.peak_bytes, self._used)

    def give(self, nbytes: float) -> None:
        """Give room back."""
        with self._changed:
            self._used -= nbytes
            self._changed.notify_all()
