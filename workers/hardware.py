"""What this machine has: its CUDA devices as torch sees them, its cores and memory.

`python -m workers.hardware DEVICE` prints it as JSON: torch is imported in a process that ends soon.
"""

import json
import logging
import platform
import subprocess
import sys
from typing import Any

import psutil

log = logging.getLogger(__name__)

PATIENCE_S = 60.0


def look(device: str) -> dict[str, Any]:
    """Return what there is, asking torch only where `device` is ``cuda``.

    {gpus: [{name, memory_bytes, uuid}], cores, memory_bytes, python, platform, torch, error}; `gpus` is empty
    where the device is no CUDA GPU, `error` says why nothing could be seen (else "").
    """
    base = {
        "gpus": [],
        "cores": psutil.cpu_count() or 1,
        "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()}",
        "torch": "",
        "error": "",
    }
    return base | (_ask_torch() if device == "cuda" else {})


def look_apart(device: str) -> dict[str, Any]:
    """As `look`, in a process of its own; what fails there is said in `error`."""
    command = [sys.executable, "-m", "workers.hardware", device]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
        devices = json.loads(process.stdout)
        return devices if isinstance(devices, dict) else {"error": "the answer is not a JSON object"}
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        log.warning("the hardware cannot be seen: %s", error)
        return look("") | {"error": str(error)[:200]}


def _ask_torch() -> dict[str, Any]:
    try:
        import torch
    except ImportError as error:
        return {"error": f"torch cannot be imported: {error}"}
    answer: dict[str, Any] = {"torch": str(torch.__version__)}
    if not torch.cuda.is_available():
        return answer | {"error": "torch sees no CUDA device"}
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return answer | {
        "gpus": [{"name": d.name, "memory_bytes": d.total_memory, "uuid": str(d.uuid)} for d in devices]
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(look(sys.argv[1] if len(sys.argv) > 1 else "")) + "\n")
