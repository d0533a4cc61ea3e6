"""`meridian probe`: both ends as processes, an emulated link, what is refused and how."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from engine.commands.probe import EmulatedLink, command
from engine.errors import InputError
from engine.inputs import parse
from engine.job.fields import TrainLink
from engine.plan.request import LinkInput
from tests.ports import free_port

EMULATED = {"latency_ms": 20.0, "bandwidth_gbps": 0.05, "window_bytes": 100_000}  # 0.02 Gbit/s a connection
SECRET = "known to both ends"
MERIDIAN = (sys.executable, "-m", "engine.cli", "probe", "-")


def probe(document: dict[str, Any], *flags: str) -> str:
    done = CliRunner().invoke(command, ["-", *flags], input=json.dumps(document), catch_exceptions=False)
    return done.stdout


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts an end in a process of its own, which does not outlive the test."""
    ends = []

    def one(document: dict[str, Any], *flags: str) -> "subprocess.Popen[str]":
        end = subprocess.Popen(
            [*MERIDIAN, *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        ends.append(end)
        assert end.stdin is not None
        end.stdin.write(json.dumps(document))
        end.stdin.close()
        end.stdin = None  # communicate must not flush it
        return end

    yield one
    for end in ends:
        end.kill()
        end.communicate()


def test_an_emulated_link_is_measured_and_its_answer_stands_as_a_link() -> None:
    answer = json.loads(probe({"emulated": EMULATED, "seconds": 0.8}, "--json"))
    assert answer["rtt_ms"] >= 40, "nothing arrives before it is due"
    rates = {rate["connections"]: rate["gbps"] for rate in answer["rates"]}
    assert [*rates] == [1, 2, 4, 8, 16, 32, 64][: len(rates)]
    assert len(rates) >= 2
    for reader in (LinkInput, TrainLink):
        link = parse(reader, {"between": ["a", "b"], **answer["link"]})
        assert link.latency_ms == answer["rtt_ms"] / 2
        assert link.bandwidth_gbps == max(rates.values())


def test_two_ends_measure_what_is_between_them(start: Start) -> None:
    document = {
        "host": "127.0.0.1",
        "port": free_port(),
        "secret": SECRET,
        "connections": [1, 2],
        "seconds": 0.2,
        "patience_s": 30,
    }
    there, here = start(document, "--listen"), start(document)
    printed, complaint = here.communicate(timeout=60)
    assert (here.returncode, complaint) == (0, "")
    assert printed.startswith("round trip ")
    assert printed.splitlines()[2].split() == ["connections", "Gbit/s", "of", "best"]
    output, _ = there.communicate(timeout=60)
    assert (there.returncode, output) == (0, "Measured by the other end.\n")


def test_another_secret_is_refused_at_both_ends(start: Start) -> None:
    document = {
        "host": "127.0.0.1",
        "port": free_port(),
        "secret": SECRET,
        "connections": [1],
        "patience_s": 6,
    }
    there, here = start(document, "--listen"), start({**document, "secret": "known to one end"})
    for end, reason in ((here, "does not know the secret"), (there, "did not connect")):
        printed, complaint = end.communicate(timeout=60)
        assert (end.returncode, printed) == (1, "")
        assert complaint.splitlines()[-1].startswith("meridian: ")
        assert reason in complaint


def test_a_port_that_is_taken(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        end = start({"host": "127.0.0.1", "port": port, "secret": SECRET}, "--listen")
        printed, complaint = end.communicate(timeout=60)
    assert (end.returncode, printed) == (2, "")
    assert complaint == f"meridian: port: {port}: is in use on 127.0.0.1\n"


def test_an_emulated_link_that_is_slower_than_the_patience_says_so(start: Start) -> None:
    end = start({"emulated": {"latency_ms": 10_000, "bandwidth_gbps": 0.001}, "patience_s": 1})
    printed, complaint = end.communicate(timeout=60)
    assert (end.returncode, printed) == (1, "")
    assert complaint == "meridian: no answer from the other end within patience_s, 1 s\n"


def test_nobody_there(start: Start) -> None:
    document = {"host": "127.0.0.1", "port": free_port(), "secret": SECRET, "patience_s": 1}
    end = start(document)
    printed, complaint = end.communicate(timeout=60)
    assert (end.returncode, printed) == (1, "")
    assert complaint.startswith("meridian: ")
    assert f"cannot reach rank 0 at 127.0.0.1:{document['port']}" in complaint
    assert complaint.count("\n") == 1


@pytest.mark.parametrize(
    ("field", "document", "flags"),
    [
        ("host", {"secret": SECRET}, ()),
        ("secret", {"host": "10.0.0.1"}, ()),
        ("secret", {"host": "10.0.0.1", "secret": "short"}, ()),
        ("host", {"emulated": EMULATED, "host": "10.0.0.1"}, ()),
        ("port", {"emulated": EMULATED, "port": 29_599}, ()),
        ("connections", {"emulated": EMULATED, "connections": [4, 2]}, ()),
        ("connections", {"emulated": EMULATED, "connections": []}, ()),
        ("connections[0]", {"emulated": EMULATED, "connections": [100]}, ()),
        ("emulated.latency_ms", {"emulated": {**EMULATED, "latency_ms": -1}}, ()),
        ("port", {"host": "10.0.0.1", "secret": SECRET, "port": 70_000}, ()),
        ("--listen", {"emulated": EMULATED}, ("--listen",)),
        ("hots", {"hots": "10.0.0.1"}, ()),
    ],
)
def test_bad_input_names_its_field(field: str, document: dict[str, Any], flags: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        probe(document, *flags)
    assert caught.value.field == field


def test_a_link_without_a_window_has_the_one_of_table_1() -> None:
    link = parse(EmulatedLink, {"latency_ms": 40, "bandwidth_gbps": 5})
    assert link.shape.connection_bytes_per_s * 8 / 1e6 == pytest.approx(299, abs=1)
