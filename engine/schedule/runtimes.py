"""Schedules as files that other runtimes read: torch.distributed.pipelining, and Megatron-LM's pipeline."""

import json

from engine.schedule.ir import Schedule
from engine.schedule.megatron import megatron_pipeline
from engine.schedule.torch_actions import add_reductions, torch_actions, torch_csv
from engine.schedule.torch_exchange import add_exchange


def torch_files(schedule: Schedule) -> dict[str, str]:
    """pipeline0.csv, …: the order of each pipeline for torch's runtime, by name.

    Raises ValueError if torch cannot run it.
    """
    return {
        f"pipeline{pipeline}.csv": torch_csv(
            add_exchange(add_reductions(torch_actions(schedule, pipeline)), schedule, pipeline)
        )
        for pipeline in range(schedule.pipelines)
    }


def megatron_files(schedule: Schedule) -> dict[str, str]:
    """Megatron-LM's options as arguments.txt, and its configuration's fields as config.json.

    Raises ValueError if Megatron runs another order.
    """
    settings = [megatron_pipeline(schedule, pipeline) for pipeline in range(schedule.pipelines)]
    first = settings[0]  # orders that are Megatron's are the same for every pipeline of a cell
    config = {**first.config(), "num_microbatches": first.microbatches}
    return {
        "arguments.txt": " ".join(first.arguments()) + "\n",
        "config.json": json.dumps(config, allow_nan=False),
    }
