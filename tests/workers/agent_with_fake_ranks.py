"""The agent as a process, with stand-ins for ranks; started by test_agent_run."""

import logging
import os
import sys
from functools import partial

from tests.waiting import LIMIT_S
from tests.workers.launching import FakeGroup
from workers.agent import Agent
from workers.config import from_environment

logging.basicConfig(stream=sys.stderr, level=logging.INFO)
agent = Agent(from_environment(os.environ), make_group=FakeGroup)
# What is left at the end goes to the broker, however slow this machine is.
agent.publisher.stop = partial(agent.publisher.stop, LIMIT_S)  # type: ignore[method-assign]
agent.run()
