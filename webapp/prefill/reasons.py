"""Why a prompt is not taken, or its answer broken off, in sentences."""

WHY = {
    "no_bubble": "No bubble holds this prompt soon enough.",
    "too_long": "The prompt fits the model, but no bubble here.",
    "queue_full": "As many requests wait as may.",
    "kv_space": "The KV cache has no room on the GPUs.",
    "ttft": "It could not be done within the objective.",
    "training_paused": "Training does not run as foreseen.",
    "prompt_too_long": "The prompt is longer than the tenancy's longest.",
    "context_length_exceeded": "The prompt and max_tokens are more than the model takes.",
    "invalid_prompt": "The prompt cannot be read as tokens of the model.",
}
FAILED = {
    "training": "Training took the place of this request, and no other was found.",
    "cancelled": "The request was withdrawn.",
    "decode": "The KV cache or its decoder was lost.",
    "stopped": "The run has ended.",
    "desk_lost": "The connection to the run was lost.",
    "slow_client": "The tokens were not taken in time.",
}
