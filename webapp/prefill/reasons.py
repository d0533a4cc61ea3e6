"""Why a prompt is not taken, or its answer broken off, in sentences."""

WHY = {
    "no_bubble": "No bubble is free for this prompt soon enough.",
    "too_long": "The prompt fits the model, but no bubble of this run.",
    "queue_full": "The queue is full.",
    "kv_space": "The GPUs have no room for the KV cache.",
    "ttft": "The time-to-first-token objective cannot be met.",
    "training_paused": "Training does not run as planned.",
    "prompt_too_long": "The prompt is longer than the tenancy allows.",
    "context_length_exceeded": "The prompt and max_tokens exceed the model's context.",
    "invalid_prompt": "The prompt cannot be read as tokens of the model.",
}
FAILED = {
    "training": "Training moved this request, and no other bubble was found in time.",
    "cancelled": "The request was withdrawn.",
    "decode": "The KV cache or its decoder was lost.",
    "stopped": "The run has ended.",
    "coordinator_lost": "The connection to the run was lost.",
    "site_lost": "The site failed while it answered, and no token was delivered.",
    "slow_client": "The client did not read the tokens in time.",
}
