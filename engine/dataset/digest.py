"""A digest of a file that reads few of its bytes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

# A file of up to 1 MiB counts whole, a larger one by 256 samples of 4 KiB.
SAMPLES, SAMPLE_BYTES = 256, 4096


def add_samples(digest: Any, file: NDArray[Any]) -> None:
    """Add the length of a mapped file and samples of its bytes to a running digest."""
    file = file.view(np.uint8)
    digest.update(file.size.to_bytes(8, "little"))
    step = max(1, file.size // SAMPLES)
    for start in range(0, file.size, max(step, SAMPLE_BYTES)):
        digest.update(file[start : start + SAMPLE_BYTES].tobytes())
