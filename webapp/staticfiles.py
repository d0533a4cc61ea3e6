"""Static files besides static/: plotly.min.js out of the plotly wheel, so that nothing is vendored."""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.contrib.staticfiles.finders import BaseFinder
from django.core.files.storage import FileSystemStorage
from whitenoise.storage import CompressedManifestStaticFilesStorage  # type: ignore[import-untyped]

NAME = "plotly/plotly.min.js"


def _package_data() -> Path:
    spec = find_spec("plotly")  # found without importing it: the site never runs plotly's Python
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the plotly package is not installed: pip install 'meridian[site]'")
    return Path(spec.submodule_search_locations[0]) / "package_data"


class PlotlyFinder(BaseFinder):
    """Finds ``plotly/plotly.min.js`` and nothing else."""

    def __init__(self, app_names: Any = None, *args: Any, **kwargs: Any) -> None:
        self.storage = FileSystemStorage(location=_package_data())
        self.storage.prefix = "plotly"  # type: ignore[attr-defined]  # collectstatic puts it before the name

    def find(self, path: str, find_all: bool = False, **kwargs: Any) -> Any:
        found = [self.storage.path("plotly.min.js")] if path == NAME else []
        return found if find_all else (found[0] if found else [])

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterable[Any]:
        yield "plotly.min.js", self.storage


class ManifestStorage(CompressedManifestStaticFilesStorage):
    """Hashed and compressed files; imports between our ES modules are rewritten to the hashed names."""

    support_js_module_import_aggregation = True
    # One pass settles one level of imports; modules that import each other in a circle never settle.
    max_post_process_passes = 20
    # In our own modules alone: packages ship examples and extensions whose imports lead nowhere.
    _js_module_import_aggregation_patterns = (
        "js/*",
        CompressedManifestStaticFilesStorage._js_module_import_aggregation_patterns[1],
    )
