"""Which versions of site and node agent go together: those with the same major and minor number."""

from engine import __version__


def series(version: str = __version__) -> str:
    """``0.1`` of ``0.1.7``."""
    return ".".join(version.split(".")[:2])


def remedy(*, site: str, agent: str) -> str:
    """The remedy if the site runs version `site` and a node's agent runs `agent`, of another series."""
    install = f"pip install 'meridian[node]=={series(site)}.*'"
    if _numbers(agent) > _numbers(site):
        return f"update the site to {series(agent)}, or run on the node: {install}"
    return f"run on the node: {install}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split("."))
