"""The TUN testbed: its equal split, its case, and its network where that can be made."""

import math
import os
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.wan_testbed.case import CONNECTIONS, NODES, PAIR_BYTES_PER_S, STAGES, Case, ranks
from benchmarks.wan_testbed.equal_split import EqualSplitIncoming, EqualSplitOutgoing
from benchmarks.wan_testbed.tun import address_of, wan
from benchmarks.wan_testbed.waiting import Hop, Pipeline, waiting_s
from engine.simulate import simulate

CAN_MAKE_NETWORKS = os.geteuid() == 0 and os.path.exists("/dev/net/tun")
HERE = "127.0.0.1"


@pytest.mark.parametrize("nbytes", [1, 7, 100_003])
def test_equal_split_brings_every_message_to_its_place(nbytes: int) -> None:
    outgoing, incoming = EqualSplitOutgoing(5), EqualSplitIncoming(5)
    server = socket.create_server((HERE, 0))
    address = server.getsockname()
    incoming.accept(server)
    outgoing.connect(HERE, address)
    keys = [(0, 2), (1, 0), (0, 0)]
    sent = {key: torch.tensor(list(secrets.token_bytes(nbytes)), dtype=torch.uint8) for key in keys}
    for key in sorted(keys):  # in another order than they are sent
        incoming.post(key, nbytes)
    under_way = [outgoing.send(key, sent[key], time.monotonic()) for key in keys]
    for message, key in zip(under_way, keys, strict=True):
        message.wait()
        assert torch.equal(incoming.wait(key).tensor, sent[key])


def test_a_message_that_comes_before_it_is_posted_waits() -> None:
    outgoing, incoming = EqualSplitOutgoing(2), EqualSplitIncoming(2)
    server = socket.create_server((HERE, 0))
    address = server.getsockname()
    incoming.accept(server)
    outgoing.connect(HERE, address)
    outgoing.send((0, 0), torch.ones(1000, dtype=torch.uint8), time.monotonic()).wait()
    incoming.post((0, 0), 1000)
    assert incoming.wait((0, 0)).tensor.sum() == 1000


def test_the_baseline_without_a_wan_takes_what_1f1b_takes() -> None:
    free = [Hop(message_s=0.0, latency_s=0.0)] * 3
    for microbatches in (1, 2, 4, 9):
        taken_s = Pipeline(free, microbatches=microbatches, forward_s=1.0, backward_s=3.0).iteration_s()
        assert taken_s == (microbatches + 3) * 4.0


def test_a_message_of_two_stages_goes_there_and_back_once_it_was_asked_for() -> None:
    way = Hop(message_s=10.0, latency_s=1.0)
    # Asked for at 0: F 2, there 10 + 1, F and B 2 + 5, asked for long before: back 10 + 1, B 5.
    assert Pipeline([way], microbatches=1, forward_s=2.0, backward_s=5.0).iteration_s() == 36.0


@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=5),
    st.integers(1, 6),
    st.floats(0.1, 3),
    st.floats(0.1, 3),
)
def test_the_baseline_is_never_faster_than_one_that_does_not_wait(
    ways: list[tuple[float, float]], microbatches: int, forward_s: float, backward_s: float
) -> None:
    hops = [Hop(message_s=message, latency_s=latency) for message, latency in ways]
    taken_s = Pipeline(
        hops, microbatches=microbatches, forward_s=forward_s, backward_s=backward_s
    ).iteration_s()
    through_s = sum(message + latency for message, latency in ways)
    ops_s = forward_s + backward_s
    assert taken_s >= max(2 * through_s + len(ways) * ops_s, (microbatches - 1) * ops_s) + ops_s - 1e-9
    assert taken_s >= microbatches * max(message for message, _ in ways)


@pytest.mark.parametrize(("part", "measured_s"), [(1, 131.0), (8, 16.26)])
def test_what_was_measured_of_the_baseline(part: int, measured_s: float) -> None:
    """On 2026-11-25 (docs/transport.md), over connections of 29.5 Mbit/s; --quick after this was written."""
    assert waiting_s(Case(part=part), 29.5e6 / 8, math.inf) == pytest.approx(measured_s, rel=0.03)


@pytest.mark.parametrize(("policy", "sharing"), [("1f1b", "spatial"), ("atlas", "temporal")])
def test_the_simulated_case_is_the_job_that_runs(policy: str, sharing: str) -> None:
    job = Case().job(policy, CONNECTIONS)
    case = Case().scenario(policy, sharing, PAIR_BYTES_PER_S, math.inf)  # type: ignore[arg-type]
    as_job = job.scenario.model_copy(update={"sharing": sharing, "spans": False})
    assert simulate(case).makespan == pytest.approx(simulate(as_job).makespan)


def test_a_shared_message_passes_the_lan_twice() -> None:
    """What two of three pipelines carry of it, before the WAN and behind it; alone it passes none."""
    lan_ms = {"spatial": 0.0, "temporal": 2 * 2 / 3 * 100.0}
    for sharing, more in lan_ms.items():
        scenario = Case().scenario("1f1b", sharing, PAIR_BYTES_PER_S, Case().message_bytes / 0.1)  # type: ignore[arg-type]
        assert scenario.hop_delays(sharing)[1] == pytest.approx(40 + more)  # type: ignore[arg-type]


def test_every_rank_has_an_address_of_its_own_in_its_data_centre() -> None:
    placed = ranks()
    assert len({rank.host for rank in placed}) == len(placed) == sum(NODES) == 3 * STAGES
    assert all(rank.host == address_of(rank.dc, rank.gpu) and rank.gpu < NODES[rank.dc] for rank in placed)


@pytest.mark.skipif(not CAN_MAKE_NETWORKS, reason="needs root and /dev/net/tun")
def test_packets_cross_with_the_delay_and_nothing_is_left_behind() -> None:
    names: list[str] = []
    with pytest.raises(ZeroDivisionError):
        _connect_and_fail(names)
    assert len(names) == 2
    assert not any(Path("/run/netns", name).exists() for name in names)


def _connect_and_fail(names: list[str]) -> None:
    script = f"""if True:
        import socket, time
        begin = time.monotonic()
        with socket.socket() as one:
            one.settimeout(20)
            try:
                one.connect(("{address_of(1, 1)}", 9))
            except ConnectionRefusedError:
                print(time.monotonic() - begin)"""
    with wan(delay_s=0.05, pair_bytes_per_s=1e6, nodes=(1, 2)) as testbed:
        names.extend(testbed.namespaces)
        before = testbed.forwarded()
        done = subprocess.run(
            testbed.run(0, sys.executable, "-c", script),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert float(done.stdout) >= 0.1  # there, and back
        assert testbed.forwarded().since(before).packets >= 2
        raise ZeroDivisionError


@pytest.mark.skipif(not CAN_MAKE_NETWORKS, reason="needs root and /dev/net/tun")
def test_the_network_of_a_process_that_was_killed_is_taken_down_by_the_next() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = f"mwan{ended.pid}-0"
    subprocess.run(["ip", "netns", "add", left], check=True)
    with wan(delay_s=0.0, pair_bytes_per_s=1e6, nodes=(1,)):
        assert not Path("/run/netns", left).exists()
