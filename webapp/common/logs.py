"""Logs: structlog over the standard library's logging, request and run ids in every line."""

import logging
import re
import sys
from typing import Any

import structlog

from webapp.common.database import is_away

SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.stdlib.PositionalArgumentsFormatter(),
]


class NoProbes(logging.Filter):
    """Leaves out requests to /healthz, /readyz and /health, which come every few seconds for ever.

    What is not well is logged by `webapp.health` once, when it changes.
    """

    PATHS = ("/healthz", "/readyz", "/health")

    def filter(self, record: logging.LogRecord) -> bool:
        request = getattr(record, "request", None)
        if isinstance(record.msg, dict):  # structlog's event, where the request is "GET /path"
            request = request or record.msg.get("request")
        path = request.rpartition(" ")[2] if isinstance(request, str) else getattr(request, "path", "")
        return path not in self.PATHS


# Addresses whose last part is the right to do something; encoded where they stand in another's query.
_SLASH = "(?:/|%2F)"
_WORD = r"[^/%?&\s'\"]+"
_TOKEN = re.compile(rf"({_SLASH}(?:join|password{_SLASH}set{_SLASH}{_WORD}){_SLASH}){_WORD}", re.IGNORECASE)


def without_tokens(logger: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
    """A processor: what stands in the log of a link for joining or for a new password does not open it."""
    return {
        key: _TOKEN.sub(r"\1…", value) if isinstance(value, str) else value for key, value in event.items()
    }


def without_outages(logger: Any, method: str, event: Any) -> Any:
    """A processor: that the database is away is one line. Every request would add the same traceback."""
    exc_info = event.get("exc_info")
    error = (
        exc_info[1]
        if isinstance(exc_info, tuple)
        else exc_info
        if isinstance(exc_info, BaseException)
        else None
    )
    if exc_info is True:
        error = sys.exc_info()[1]
    if error is not None and is_away(error):
        del event["exc_info"]
        event["error"] = "the database does not answer"
    return event


def configure_structlog() -> None:
    """Send structlog's events through logging, so that one set of handlers serves both."""
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *SHARED,
            structlog.processors.StackInfoRenderer(),
            without_outages,
            structlog.processors.format_exc_info,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def logging_config(*, json_lines: bool, level: str) -> dict[str, Any]:
    """The LOGGING setting: one stream handler, JSON lines in production and readable lines elsewhere."""
    renderer = (
        structlog.processors.JSONRenderer()
        if json_lines
        else structlog.dev.ConsoleRenderer(
            colors=False, pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
        )
    )
    quiet = {"handlers": ["stream"], "level": "WARNING", "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {
                "()": structlog.stdlib.ProcessorFormatter,
                "processors": [
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    without_tokens,
                    without_outages,
                    renderer,
                ],
                "foreign_pre_chain": SHARED,
            }
        },
        "filters": {"no_probes": {"()": "webapp.common.logs.NoProbes"}},
        "handlers": {
            "stream": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["no_probes"]}
        },
        "root": {"handlers": ["stream"], "level": level},
        "loggers": {
            "django_structlog": {"handlers": ["stream"], "level": "WARNING", "propagate": False},
            "django.server": quiet,
            "axes": quiet,
            "celery": quiet,  # a task every 2 s is no news
            "kombu": quiet,
            "asyncio": quiet,
        },
    }


def request_id() -> str:
    """The id of the HTTP request, or of the control task, that runs now; empty in a command."""
    bound = structlog.contextvars.get_contextvars()
    return str(bound.get("request_id") or bound.get("task_id") or "")[:64]
