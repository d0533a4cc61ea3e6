"""Which packages a machine imports for runs whose document names a module of its own.

Operators of a site write documents; the machine is somebody else's, and importing a module runs its code. The
owner names the packages in the environment. Nothing is imported where it names none.
"""

import os
import re
from collections.abc import Mapping

from engine.errors import InputError

MODULES = "MERIDIAN_NODE_MODULES"
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def opened_modules(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The packages that the environment opens to runs. Raises InputError where one has no valid name."""
    names = tuple(name.strip() for name in environ.get(MODULES, "").split(",") if name.strip())
    for name in names:
        if not _NAME.fullmatch(name):
            raise InputError(MODULES, name, "must be names of packages with commas between them, as in a,b.c")
    return names


def require_open(module: str, environ: Mapping[str, str] = os.environ) -> None:
    """Raise InputError unless this machine imports `package:attribute` for runs.

    A package that is named opens what lies in it: `acme` also acme.models.
    """
    package, opened = module.partition(":")[0], opened_modules(environ)
    if any(package == name or package.startswith(f"{name}.") for name in opened):
        return
    allowed = (
        f"must be of a package that this machine opens to runs ({', '.join(opened) or 'none'}). "
        f"The owner of the machine can add it to {MODULES}, and restart the agent"
    )
    raise InputError("model.module", module, allowed)
