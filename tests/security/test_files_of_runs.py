"""A run reads and writes only what the owner of a machine has opened to runs, whatever its document names."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from engine.errors import InputError
from engine.inputs import parse
from engine.job.file_access import FileAccess, files_of, with_files
from engine.job.job import TrainJob
from engine.job.launch import LaunchSpec
from engine.job.model_document import ConfigModel
from engine.job.sections.data import ValidationSettings
from tests.events import as_dicts
from tests.workers.launching import JOB, FakeGroup, spec
from webapp.inventory.models import Node
from webapp.inventory.services.nodes import checked_hardware
from webapp.jobs.dry import dry_run_document
from workers.config import OWN, from_environment
from workers.join import env_file, read_environment, write_environment
from workers.ledger import Ledger
from workers.ranks import RankSupervisor

PREFILL = {
    "checkpoint": "P",
    "name": "m",
    "weight_budget_gb": 0.01,
    "kv_budget_gb": 0.01,
    "latency": {"a_ms": 2, "b_ms": 0.1, "c_ms": 0},
}
ENVIRONMENT = {
    "MERIDIAN_NODE": "a",
    "MERIDIAN_BROKER_URL": "redis://node-a:secret@127.0.0.1:6379/0",
    "MERIDIAN_NODE_GPUS": "2",
    "MERIDIAN_NODE_DEVICE": "cpu",
    "MERIDIAN_NODE_HOST": "127.0.0.1",
}
LLAMA = {
    "config": {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "vocab_size": 256,
        "max_position_embeddings": 16,
    },
    "seq": 16,
}
# Strings of a job's document that name no file.
WORDS = {
    "datacenters[].name",
    "links[].between[]",
    "model.module",  # a package, which the machine's owner opens (engine.job.module_access)
    "prefill.name",
    "strategy.gpu.name",
    "strategy.policy",
    "strategy.schedule",
}


def full_job() -> TrainJob:
    """A job whose document names every file that one can name."""
    job = parse(TrainJob, {**JOB, "data": {"a": "D"}, "checkpoint": {"dir": "C", "every": 1}, "resume": "R"})
    job = job.with_fields("model", tokenizer="T").with_fields(
        "tracking", tensorboard="B", mlflow="M", wandb="N"
    )
    tls = {"certificate": "X", "key": "Y", "authority": "Z"}
    parsed = parse(TrainJob, {**JOB, "tls": tls})
    return job.model_copy(update={"tls": parsed.tls, "prefill": prefill_of()})


def prefill_of() -> Any:
    annotation = TrainJob.model_fields["prefill"].annotation
    settings_class = next(one for one in annotation.__args__ if one is not type(None))
    return parse(settings_class, PREFILL)


def strings_of(schema: dict[str, Any]) -> Iterator[str]:
    """The paths in a JSON schema where any text may stand."""
    kinds = schema.get("$defs", {})

    def walk(part: dict[str, Any], path: str, seen: tuple[str, ...]) -> Iterator[str]:
        if "$ref" in part:
            name = part["$ref"].rpartition("/")[2]
            if name not in seen:
                yield from walk(kinds[name], path, (*seen, name))
            return
        for choice in (*part.get("anyOf", ()), *part.get("oneOf", ()), *part.get("allOf", ())):
            yield from walk(choice, path, seen)
        if part.get("type") == "string" and not {"enum", "const"} & part.keys():
            yield path.lstrip(".")
        for name, inner in part.get("properties", {}).items():
            yield from walk(inner, f"{path}.{name}", seen)
        for inner in (part.get("items"), *part.get("prefixItems", ())):
            if isinstance(inner, dict):
                yield from walk(inner, f"{path}[]", seen)
        if isinstance(part.get("additionalProperties"), dict):
            yield from walk(part["additionalProperties"], f"{path}.a", seen)

    return walk(schema, "", ())


def test_every_text_of_a_document_is_a_file_that_is_checked_or_a_word() -> None:
    held_out = ValidationSettings(every=1, prepared="V")
    prepared = full_job().with_fields("data", files=None, prepared={"a": "E"}, validation=held_out)
    begun = full_job().model_copy(update={"model": parse(ConfigModel, {**LLAMA, "init": "W"})})
    files = {field for job in (full_job(), prepared, begun) for field, _ in files_of(job)}
    files |= {"data.files", "data.prepared"}
    assert set(strings_of(TrainJob.model_json_schema())) == files | WORDS


@pytest.fixture
def var(tmp_path: Path) -> Path:
    folder = tmp_path / "var"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "nodes").mkdir()
    (folder / "nodes" / "a.env").write_text("secret")
    return folder


@pytest.fixture
def access(var: Path) -> FileAccess:
    return from_environment({**ENVIRONMENT, "MERIDIAN_VAR": str(var)}).files


def saving_to(where: str) -> TrainJob:
    return parse(TrainJob, {**JOB, "checkpoint": {"dir": where, "every": 1}})


REFUSED = (
    "/etc",
    "/etc/cron.d/new",
    "/nowhere/at/all",
    "~/.ssh",
    "~nobody-at-all/x",
    "relative",
    "file:///etc",
    "local:///etc",
    "FILE:///etc",
    "http://169.254.169.254/latest",
    "memory://x",
    "sftp://host/x",
    "s3://",
    "S3://bucket/x",
    "simplecache::s3://bucket/x",
    "s3://bucket/x::file:///etc",
    "filecache::file:///etc",
    "{var}",
    "{var}/",
    "{var}/../outside",
    "{var}/checkpoints/../../outside",
    "{var}/checkpoints/../nodes",
    "{var}/nodes",
    "{var}/nodes/a.env",
    "{var}/nodes/new",
    "{var}/secret_key",
    "{var}/link",
    "{var}/link/below",
    "{var}/to-nodes",
    "{var}/circle",
    "{var}-next-to-it/x",
    "nul\0",
)


@pytest.mark.parametrize("where", REFUSED)
def test_what_is_not_open_to_runs_is_refused(var: Path, access: FileAccess, where: str) -> None:
    (var / "link").symlink_to("/etc")
    (var / "to-nodes").symlink_to(var / "nodes")
    (var / "circle").symlink_to(var / "circle")
    with pytest.raises(InputError, match="MERIDIAN_NODE_ROOTS") as error:
        access.opened(saving_to(where.format(var=var)))
    assert error.value.field == "persistence.checkpoint.dir"


@pytest.mark.parametrize("where", ["{var}/checkpoints/run-7", "{var}/new", "s3://bucket/x", "gs://b/x"])
def test_what_is_open_to_runs_stays(var: Path, access: FileAccess, where: str) -> None:
    where = where.format(var=var)
    assert dict(files_of(access.opened(saving_to(where)))) == {"persistence.checkpoint.dir": where}


@pytest.mark.parametrize("field", [field for field, _ in files_of(full_job())])
def test_each_field_is_held_to_it(var: Path, access: FileAccess, field: str) -> None:
    inside, outside = str(var / "checkpoints"), "/etc/passwd"
    good = with_files(full_job(), lambda name, value: inside)
    assert dict(files_of(access.opened(good))) == dict(files_of(good))
    bad = with_files(full_job(), lambda name, value: outside if name == field else inside)
    with pytest.raises(InputError) as error:
        access.opened(bad)
    assert (error.value.field, error.value.value) == (field, outside)
    url = with_files(full_job(), lambda name, value: "s3://bucket/x" if name == field else inside)
    if not field.startswith("persistence."):
        with pytest.raises(InputError):
            access.opened(url)


def test_a_refusal_does_not_tell_what_there_is(var: Path, access: FileAccess) -> None:
    (var / "link").symlink_to("/etc")
    messages = set()
    outside = ("/etc", "/etc/passwd", "/etc/no-such-file", "/root/x")
    for where in (*outside, f"{var}/link/passwd", f"{var}/link/no"):
        with pytest.raises(InputError) as error:
            access.opened(saving_to(where))
        messages.add(error.value.allowed)
    assert len(messages) == 1


def test_the_owner_of_a_machine_opens_folders_and_closes_stores(tmp_path: Path, var: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "srv").symlink_to(tmp_path / "real")
    given = {**ENVIRONMENT, "MERIDIAN_VAR": str(var), "MERIDIAN_NODE_SCHEMES": "none"}
    access = from_environment({**given, "MERIDIAN_NODE_ROOTS": f"{tmp_path / 'srv'}:/"}).files
    assert dict(files_of(access.opened(saving_to(f"{tmp_path}/srv/x")))) == {
        "persistence.checkpoint.dir": f"{tmp_path}/real/x"
    }
    for where in ("s3://bucket/x", f"{var}/nodes", str(var), "/"):
        with pytest.raises(InputError):
            access.opened(saving_to(where))
    for name, value in (("ROOTS", "srv"), ("SCHEMES", "file"), ("SCHEMES", "s3,local"), ("SCHEMES", "s3://")):
        with pytest.raises(InputError, match=f"MERIDIAN_NODE_{name}"):
            from_environment({**given, f"MERIDIAN_NODE_{name}": value})


def test_the_agent_refuses_before_a_rank_starts(tmp_path: Path, access: FileAccess) -> None:
    events: list[dict] = []
    started: list[LaunchSpec] = []

    def make_group(given: LaunchSpec, on_event: Any) -> FakeGroup:
        started.append(given)
        return FakeGroup(given, on_event)

    ranks = RankSupervisor(
        node="a",
        logs=tmp_path / "ranks",
        ledger=Ledger(tmp_path / "runs.json"),
        files=access,
        publish=as_dicts(events),
        make_group=make_group,
        find_group=lambda *_: None,
    )
    assert ranks.start(spec(job=saving_to("file:///etc")).to_json()).startswith("refused: persistence.")
    assert started == []
    assert {(event["rank"], event["state"]) for event in events} == {(0, "failed"), (1, "failed")}
    assert all("MERIDIAN_NODE_ROOTS" in event["detail"] for event in events)


def test_a_site_cannot_open_a_machines_folders(tmp_path: Path) -> None:
    """What it answers to a join is kept in the agent's environment."""
    for name in ("MERIDIAN_NODE_ROOTS", "MERIDIAN_NODE_SCHEMES", "MERIDIAN_VAR"):
        with pytest.raises(InputError):
            write_environment(tmp_path, {**ENVIRONMENT, name: "/"})
    path = write_environment(tmp_path, ENVIRONMENT)
    with path.open("a") as file:
        file.write("MERIDIAN_NODE_ROOTS=/srv\n")
    write_environment(tmp_path, {**ENVIRONMENT, "MERIDIAN_NODE_GPUS": "4"})
    environment = read_environment(env_file(tmp_path, "a"))
    assert (environment["MERIDIAN_NODE_ROOTS"], environment["MERIDIAN_NODE_GPUS"]) == ("/srv", "4")


def test_all_that_meridian_keeps_in_its_folder_is_closed_to_runs() -> None:
    there = {path.name for path in settings.VAR.iterdir()}
    assert there <= set(OWN), "name it in workers.config.OWN, or runs may read and write it"


def hear_of_files(node: Node, *roots: str) -> None:
    hardware = checked_hardware({"files": {"roots": list(roots), "schemes": ["s3"]}})
    Node.objects.filter(pk=node.pk).update(seen_hardware=json.loads(json.dumps(hardware)))


def test_the_site_says_so_before_a_launch(world: Any) -> None:
    document = {**world.launch().job.document, "persistence": {"checkpoint": {"dir": "/etc/x", "every": 5}}}

    def said() -> dict[str, dict[str, Any]]:
        checks = dry_run_document(document, world.team)["checks"]
        return {check["name"]: check for check in checks if check["name"].startswith("Files")}

    assert said() == {}, "no agent has told what it opens"
    for node in world.nodes:
        hear_of_files(node, "/srv/runs")
    texts = said()
    assert len(texts) == len({dc["name"] for dc in document["datacenters"]})
    assert all(check["blocks"] and "MERIDIAN_NODE_ROOTS" in check["text"] for check in texts.values())
    for node in world.nodes:
        hear_of_files(node, "/etc")
    assert said() == {}
    document["persistence"]["checkpoint"]["dir"] = "s3://bucket/x"
    assert said() == {}
    document["persistence"]["checkpoint"]["dir"] = "file:///etc/x"
    assert said()
