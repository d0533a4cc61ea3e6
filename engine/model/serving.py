"""What a GPU that trains keeps of its memory for the prefill that is sold in its bubbles."""

from engine.inputs import Document, Positive


class PrefillBudget(Document):
    """A budget of one GPU's memory: of planning (`job.prefill`) and of running (`prefill` of a training job).

    BubbleTea (§5.1) keeps 1 to 2 GB a GPU for weights.

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
        """Both together: what training does not get."""
        return self.weight_budget_bytes + self.kv_budget_bytes
