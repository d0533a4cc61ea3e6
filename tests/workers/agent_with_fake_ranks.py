"""The agent as a process, with stand-ins for ranks; started by test_agent_run."""

import logging
import os
import sys

from tests.workers.launching import FakeGroup
from workers.agent import Agent
from workers.config import from_environment

logging.basicConfig(stream=sys.stderr, level=logging.INFO)
Agent(from_environment(os.environ), make_group=FakeGroup).run()
