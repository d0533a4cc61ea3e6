"""What ranks share with their host stays shared."""

import json
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

# What a host imports ahead, what of CUDA that uses, and what a rank imports then: building its model, and its
# first step.
STEP = """
import json, sys
import torch
from engine.nn.model import Stage
from engine.run import host, host_start
from engine.train.optimizer import AdamW
from tests.runtime.jobs import job

used = []
for name in ("is_available", "device_count", "_lazy_init"):
    setattr(torch.cuda, name, lambda *_, name=name: used.append(name))
small = {"layers": 3, "hidden": 32, "heads": 2, "seq": 16}
jobs = [job(model=small), job(model={"family": "llama", **small})]
host_start.import_ahead()
ahead, of_cuda = set(sys.modules), list(used)
for of in jobs:
    for stage in range(of.cell.stages):
        Stage(of, stage)
parameter = torch.nn.Parameter(torch.ones(2))
settings = {"lr": 0.1, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
optimizer = AdamW([{"params": [parameter], **settings}])
parameter.square().sum().backward()
optimizer.step()
print(json.dumps([sorted(set(sys.modules) - ahead), of_cuda, "torch._dynamo" in sys.modules]))
"""


def test_a_host_imports_what_a_step_takes_and_leaves_cuda_alone() -> None:
    done = subprocess.run([sys.executable, "-c", STEP], capture_output=True, check=True)
    imported, used_of_cuda, has_compiler = json.loads(done.stdout)
    assert len(imported) < 20, "hundreds without what the host imports"
    assert used_of_cuda == []
    assert not has_compiler, "0.7 s of a core and 75 MB, which no step uses"


def test_a_host_imports_what_ranks_of_tensor_parallelism_take() -> None:
    prepared = (
        "import sys; from engine.run.host_start import prepare; from tests.runtime.jobs import job;"
        "prepare(job(stages=1, dc_of_stage=None, tp=2), None);"
        "ahead = set(sys.modules); import engine.nn.tensor_parallel, torch._dynamo;"
        "print(len(set(sys.modules) - ahead))"
    )
    done = subprocess.run([sys.executable, "-c", prepared], capture_output=True, check=True)
    assert int(done.stdout) < 20, "330 without what the host imports"


@pytest.mark.skipif(sys.platform != "linux", reason="counts pages by /proc")
def test_what_torch_makes_takes_few_pages_from_the_host() -> None:
    taken_kb = {
        how: int(subprocess.run([sys.executable, "-c", FORK, how], capture_output=True, check=True).stdout)
        for how in ("share", "fork")
    }
    assert taken_kb["share"] < 0.7 * taken_kb["fork"], taken_kb
