"""The part of a training GPU's memory that is reserved for prefill in its bubbles."""

from engine.inputs import Document, Positive


class PrefillBudget(Document):
    """A budget of one GPU's memory, for planning (`job.prefill`) and for running (`prefill` of a training
    job).

    BubbleTea (§5.1) reserves 1 to 2 GB a GPU for weights.

    weight_budget_gb, kv_budget_gb : most of one GPU's memory for weights and KV caches (10^9 bytes).
    """

    weight_budget_gb: Positive = 2.0
    kv_budget_gb: Positive = 1.0

    @property
    def weight_budget_bytes(self) -> int:
        return round(self.weight_budget_gb * 1e9)

    @property
    def kv_budget_bytes(self) -> int:
        return round(self.kv_budget_gb * 1e9)

    @property
    def bytes(self) -> int:
        """Both together: memory that training does not get."""
        return self.weight_budget_bytes + self.kv_budget_bytes
