"""Static files: served without holding a thread for other answers, and plotly.min.js out of its wheel."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.contrib.staticfiles.finders import BaseFinder
from django.core.files.storage import FileSystemStorage
from django.http import HttpRequest
from whitenoise.middleware import WhiteNoiseMiddleware  # type: ignore[import-untyped]
from whitenoise.storage import CompressedManifestStaticFilesStorage  # type: ignore[import-untyped]

BLOCKS = 64  # of 4 KiB
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
        paths = [self.storage.path("plotly.min.js")] if path == NAME else []
        return paths if find_all else (paths[0] if paths else [])

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterable[Any]:
        yield "plotly.min.js", self.storage


class StaticFilesMiddleware(WhiteNoiseMiddleware):
    """WhiteNoise between async neighbours: as it comes, it would hold a thread until each answer begins."""

    async_capable = sync_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        super().__init__(get_response)
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        return self._answer(request) if iscoroutinefunction(self) else super().__call__(request)

    async def _answer(self, request: HttpRequest) -> Any:
        if request.path_info.startswith(self.static_prefix):
            response = await sync_to_async(self._file)(request)
            if response is not None:
                if response.streaming:
                    response.streaming_content = _pieces(iter(response.streaming_content))
                return response
        following: Awaitable[Any] = self.get_response(request)
        return await following

    def _file(self, request: HttpRequest) -> Any:
        path = request.path_info
        file = self.find_file(path) if self.autorefresh else self.files.get(path)
        return None if file is None else self.serve(file, request)


async def _pieces(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    """`parts`, some at a time: of what is no async iterator Django would collect all before it sends any."""
    while piece := await sync_to_async(lambda: b"".join(islice(parts, BLOCKS)))():
        yield piece


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
