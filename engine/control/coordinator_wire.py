"""What prefill coordinators and gateways say to each other over a control channel, and who they are there."""

from engine.control.messages import Messages
from engine.prefill.messages import (
    Accepted,
    Account,
    Accounted,
    Done,
    Failed,
    PrefillRequest,
    Refused,
    Token,
    Withdraw,
)

# Of the coordinator of the run's first data centre; the next one's is one more: past all ranks.
COORDINATOR_RANK = 1_000_000
GATEWAY_RANK = 2_000_000
Question = PrefillRequest | Withdraw | Account
Answer = Accepted | Refused | Token | Done | Failed | Accounted
FROM_GATEWAY: Messages[Question] = Messages(Question)
FROM_COORDINATOR: Messages[Answer] = Messages(Answer)
