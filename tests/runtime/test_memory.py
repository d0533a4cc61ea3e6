"""What ranks share with their host stays shared."""

import subprocess
import sys

import pytest

# A fork makes as many instances as a rank does in some minutes, and says how many kB of the host's it took.
FORK = """
import gc, os, sys
import torch.distributed
from torch.distributed import AllreduceOptions
from engine.train.memory import share

def shared_kb():
    with open("/proc/self/smaps_rollup") as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith("Shared_Dirty"))

if sys.argv[1] == "share":
    share()
if os.fork() == 0:
    gc.disable()
    before = shared_kb()
    kept = [AllreduceOptions() for _ in range(1_500)]  # fewer than would make the table grow
    print(before - shared_kb(), flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts pages by /proc")
def test_what_torch_makes_takes_few_pages_from_the_host() -> None:
    taken_kb = {
        how: int(subprocess.run([sys.executable, "-c", FORK, how], capture_output=True, check=True).stdout)
        for how in ("share", "fork")
    }
    assert taken_kb["share"] < 0.7 * taken_kb["fork"], taken_kb
