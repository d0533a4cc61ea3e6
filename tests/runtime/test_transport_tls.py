"""Mutual TLS: bytes pass between nodes that have certificates of one authority, and no others."""

import contextlib
import random
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from engine.errors import InputError
from engine.transport import AuthenticationError, Peer, TlsFiles, TransportError
from tests.runtime.jobs import Run, job
from tests.runtime.test_training_equals_single import reference
from tests.runtime.transport_pairs import endpoint, in_parallel

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates with openssl")


def openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


def authority(folder: Path) -> Path:
    folder.mkdir()
    openssl(
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        2,
        "-subj",
        "/CN=run",
        "-keyout",
        folder / "ca.key",
        "-out",
        folder / "ca.pem",
    )
    return folder


def node(folder: Path, name: str) -> TlsFiles:
    """A certificate for `name`, signed by the authority in `folder`."""
    key, request, certificate = (folder / f"{name}.{kind}" for kind in ("key", "csr", "pem"))
    openssl(
        "req",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-subj",
        f"/CN={name}",
        "-keyout",
        key,
        "-out",
        request,
    )
    openssl(
        "x509",
        "-req",
        "-in",
        request,
        "-CA",
        folder / "ca.pem",
        "-CAkey",
        folder / "ca.key",
        "-CAcreateserial",
        "-days",
        2,
        "-out",
        certificate,
    )
    return TlsFiles(certificate=certificate, key=key, authority=folder / "ca.pem")


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, TlsFiles]:
    folder = tmp_path_factory.mktemp("tls")
    ours, theirs = authority(folder / "ours"), authority(folder / "theirs")
    return {"a": node(ours, "a"), "b": node(ours, "b"), "stranger": node(theirs, "stranger")}


def test_messages_pass_both_ways_and_survive_a_cut(files):
    ends = (endpoint(0, tls=files["a"]), endpoint(1, tls=files["b"], unexpected_bytes=1_000_000))
    with contextlib.closing(ends[0]), contextlib.closing(ends[1]):
        in_parallel(
            2,
            lambda r: ends[r].connect([Peer(rank=1 - r, address=ends[1 - r].address, connections=3)], 20),
        )
        for turn in range(3):
            message = random.Random(turn).randbytes(6_000_000)
            sends = [ends[r].send(1 - r, (turn,), message) for r in range(2)]
            sends.append(ends[0].send(1, (turn, 0), b"small"))
            if turn == 1:
                ends[0].cut(1)
            receives = [ends[r].post_receive(1 - r, (turn,), bytearray(len(message))) for r in range(2)]
            receives.append(ends[1].post_receive(0, (turn, 0)))
            for handle in (*receives, *sends):
                handle.wait(30)
            assert [bytes(r.buffer) for r in receives] == [message, message, b"small"]


def test_bytes_on_the_wire_are_not_those_of_the_message(files):
    """The connection really is encrypted."""
    ends = (endpoint(0, tls=files["a"]), endpoint(1, tls=files["b"]))
    with contextlib.closing(ends[0]), contextlib.closing(ends[1]):
        in_parallel(2, lambda r: ends[r].connect([Peer(rank=1 - r, address=ends[1 - r].address)], 20))
        ciphers = {c._socket.cipher()[1] for c in ends[0]._links[1]._connections.values()}
        assert ciphers == {"TLSv1.3"}


@pytest.mark.parametrize("who", ["stranger", None])
def test_a_node_without_a_certificate_of_ours_is_refused(files, who):
    here, there = endpoint(0, tls=files["a"]), endpoint(1, tls=files[who] if who else None)
    with contextlib.closing(here), contextlib.closing(there):

        def wait_for_it():
            with pytest.raises(TransportError):
                here.connect([Peer(rank=1, address=there.address)], 3)

        waiting = threading.Thread(target=wait_for_it)
        waiting.start()
        expected = (AuthenticationError, "certificate") if who else (TransportError, "cannot reach rank 0")
        with pytest.raises(expected[0], match=expected[1]):
            there.connect([Peer(rank=0, address=here.address)], 3)
        waiting.join()


@pytest.mark.parametrize("field", ["certificate", "authority"])
def test_a_file_that_does_not_do_is_named(files, tmp_path, field):
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("not a certificate")
    figures = {name: getattr(files["a"], name) for name in ("certificate", "key", "authority")}
    with pytest.raises(InputError, match=f"tls.{field}"):
        endpoint(0, tls=TlsFiles(**{**figures, field: wrong}))
    with pytest.raises(InputError, match=f"tls.{field}"):
        endpoint(0, tls=TlsFiles(**{**figures, field: tmp_path / "missing.pem"}))


@pytest.mark.long
def test_a_job_trains_over_tls(files, tmp_path):
    paths = {name: str(getattr(files["a"], name)) for name in ("certificate", "key", "authority")}
    of = job(dtype="fp64", steps=2, tls=paths)
    losses, _, _ = reference(of)
    assert Run(of, str(tmp_path)).result()["losses"] == pytest.approx(losses, rel=1e-9)


def test_a_job_with_a_file_that_does_not_do_starts_no_rank(files, tmp_path):
    paths = {"certificate": str(files["stranger"].certificate), "key": str(files["a"].key)}
    run = Run(job(tls={**paths, "authority": str(files["a"].authority)}), str(tmp_path))
    assert run.group.wait(60)
    events = run.of_kind("rank")
    assert {event["state"] for event in events} == {"failed"}
    assert all("tls.certificate" in event["detail"] for event in events)
