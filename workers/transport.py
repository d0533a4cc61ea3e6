"""How an agent takes tasks from its queue: kombu's Redis transport, with nothing but BRPOP.

kombu keeps a copy of each task until it is acknowledged, and gives back what was not. For that it needs a
dozen commands and a lock whose release is a Lua script. A node that may run scripts can block the broker.
An agent needs none of it: it is the only consumer of its queue, and the site sends again what was not
answered (webapp/jobs/reconcile.py). So a task that an agent took and died over is lost on purpose.
"""

from kombu.transport import redis


class Channel(redis.Channel):
    """Takes messages, acknowledges them to nobody, and gives none back when it closes."""

    ack_emulation = False
    do_restore = False


class Transport(redis.Transport):
    """kombu's Redis transport with this channel."""

    Channel = Channel
