"""Where a field of a flat document stands in a document in sections."""

from engine.inputs import Document
from engine.job.sections.cell import CellSection
from engine.job.sections.failures import FailuresSection
from engine.job.sections.optimizer import OptimizerSection
from engine.job.sections.persistence import PersistenceSection
from engine.job.sections.strategy import PipelineStrategy

_SAME_NAMES: dict[str, type[Document]] = {
    "cell": CellSection,
    "optimizer": OptimizerSection,
    "persistence": PersistenceSection,
    "failures": FailuresSection,
    "strategy": PipelineStrategy,
}
# By flat name; sections that are as they were (model, prefill, tls) are not among them.
PATHS = {
    **{name: f"{section}.{name}" for section, model in _SAME_NAMES.items() for name in model.model_fields},
    **{name: f"device.{name}" for name in ("times_ms", "dtype", "ranks_per_gpu", "nccl")},
    "device": "device.kind",
    "data": "data.files",
    "validation": "data.validation",
    "strategy": "strategy.kind",
}
del PATHS["kind"]


def path_of(field: str) -> str:
    """The path in a job of a scenario's field: memory_limit → strategy.memory_limit, times.forward[1] → …"""
    name = field.partition(".")[0].partition("[")[0]
    return {**PATHS, "times": PATHS["times_ms"]}.get(name, name) + field[len(name) :]
