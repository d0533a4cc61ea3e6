"""The servers of a test run: one PostgreSQL with a database for each process, and a Valkey for each.

They live in folders of their own, and as long as the process that started them.
"""

import gc
import os
import shutil
import sys
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest

pytest_plugins = ["tests.forked_hosts"]
POSTGRES = pytest.StashKey[str]()  # the URL of the server of all workers
_servers = ExitStack()

# Where Python is told to keep no bytecode, every worker and every program that a test starts compiles all of
# our sources again, and each worker rewrites the assertions of 220 files: a minute of CPU and more in a run.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Tests run side by side: threads of one that wait for each other would take a core from the rest.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# The machine is shared with other test processes: a slow example says nothing about the code. Examples are
# the same in every run, so that a change is judged by what it does; new ones are looked for with
# `--hypothesis-profile=explore`.
hypothesis.settings.register_profile("tests", deadline=None, max_examples=60, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
hypothesis.settings.load_profile("tests")


def _is_controller_of_workers(config: pytest.Config) -> bool:
    return not hasattr(config, "workerinput") and bool(config.getoption("numprocesses", None))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Start the servers before Django reads its settings."""
    if not _is_controller_of_workers(config):
        gc.disable()  # until all is collected: what imports and collection make stays
    # Short: the path of PostgreSQL's socket may have at most 107 bytes.
    var = Path(tempfile.mkdtemp(prefix="meridian-"))
    var.chmod(0o711)  # as root the servers run as another account: their data stays in here
    _servers.callback(shutil.rmtree, var, ignore_errors=True)
    if config.getoption("collectonly"):  # nothing is asked of servers: any well-formed URLs do
        _set_up_django(var, "postgres://nobody@127.0.0.1:1/none", "redis://127.0.0.1:1/0")
        return
    if _is_controller_of_workers(config):
        # Its environment and settings stay as they are: workers inherit them, and pytest-django would read
        # the settings in them before this function runs.
        config.stash[POSTGRES] = _started(var, "postgres")[0]
    elif hasattr(config, "workerinput"):
        _set_up_django(var, config.workerinput["postgres"], *_started(var, "valkey"))
    else:
        _set_up_django(var, *_started(var, "postgres", "valkey"))


def pytest_configure_node(node: Any) -> None:
    """Tell a worker where the PostgreSQL of all workers is."""
    node.workerinput["postgres"] = node.config.stash[POSTGRES]


def _started(var: Path, *names: str) -> list[str]:
    """Start these servers in the folder; return their URLs."""
    from webapp.servers import EmbeddedServers

    return [server.url for server in _servers.enter_context(EmbeddedServers(var, names)).servers]


def _set_up_django(var: Path, database_url: str, valkey_url: str) -> None:
    os.environ.update(
        DJANGO_SETTINGS_MODULE="webapp.settings",
        MERIDIAN_VAR=str(var),
        DATABASE_URL=database_url,
        VALKEY_URL=valkey_url,
    )

    import django
    from django.conf import settings

    django.setup()
    # What costs a test seconds and says nothing: listing all static files for every client, slow hashes.
    settings.WHITENOISE_AUTOREFRESH = True
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


# All that starts demos, one after the other: they mostly wait, and take 3 GB each; but the demo that trains
# for ten minutes runs beside them. One run that prefills, and with it all that compares with transformers,
# whose import takes seconds of each process.
TOGETHER = (
    (
        "tests/demo/test_browser",
        "tests/demo/test_journey.py",
        "tests/demo/test_pages_axe.py",
        "tests/demo_alone/shared/",
        "tests/demo_alone/test_disk.py",
        "tests/demo_alone/test_prefill.py",
        "tests/demo_alone/test_shutdown.py",
    ),
    (
        "tests/runtime/prefill/",
        "tests/engine/test_hugging_face.py",
        "tests/runtime/test_export.py",
        "tests/runtime/test_learning_rate.py",
        "tests/dataset/test_chat.py",
        "tests/site/test_completions.py",
        "tests/fake_cuda/test_prefill.py",
    ),
)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests that share one costly start go to one worker together; others go to any.

    A fixture of a module would be made again by each worker, and after each test of another module.
    """
    from xdist.scheduler import LoadScopeScheduling

    @cache
    def has_a_fixture(file: str) -> bool:
        return 'scope="module"' in (config.rootpath / file).read_text(encoding="utf-8")

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            alone = file if has_a_fixture(file) else nodeid
            return next((group[0] for group in TOGETHER if nodeid.startswith(group)), alone)

    return Together(config, log)


def pytest_unconfigure() -> None:
    """Stop the servers, whatever the tests did."""
    _servers.close()


def pytest_collection_finish() -> None:
    """Leave what imports and collection made out of all later collections of garbage.

    Looking through it again and again is a twelfth of the CPU of a test of the site. What outlives a whole
    collection stays too: imports inside tests, and what they keep for good.
    """
    gc.freeze()
    gc.callbacks.append(_freeze_what_stays)
    gc.enable()


def _freeze_what_stays(phase: str, collection: dict[str, int]) -> None:
    if phase == "stop" and collection["generation"] == 2:
        gc.freeze()


@pytest.fixture(scope="session")
def django_db_setup(
    django_test_environment: None, django_db_blocker: Any, request: pytest.FixtureRequest
) -> None:
    """In place of pytest-django's, which migrates a database for each worker: 5 s of a core each."""
    from tests import databases

    worker = getattr(request.config, "workerinput", {}).get("workerid", "main")
    with django_db_blocker.unblock():
        databases.create(f"test_{worker}")


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that start the product themselves: none of the test process's own settings reach it."""
    for name in [*os.environ]:
        if name.startswith("MERIDIAN_") or name in ("DATABASE_URL", "VALKEY_URL", "DJANGO_SETTINGS_MODULE"):
            monkeypatch.delenv(name)
