"""`meridian probe FILE`: round trip of a link, and its rate by number of TCP connections."""

import contextlib
import secrets
import sys
import threading
from concurrent.futures import Future
from typing import Annotated, Any, NoReturn

import click
from pydantic import Field, model_validator

from engine.cluster import tcp
from engine.commands.printed import show
from engine.commands.tables import number, render
from engine.documents import load_document
from engine.errors import InputError
from engine.inputs import Count, Document, NonNegative, Positive, parse
from engine.run.link_rates import LinkRates, emulated_link, listen, measure
from engine.transport import Address, LinkShape, TransportError

LOCALHOST = "127.0.0.1"
TRIAL = "probe"  # stands for the run's name, which both ends must give


class EmulatedLink(Document):
    """Figures of a link that the transport emulates, per direction, and the window of one TCP connection."""

    latency_ms: Annotated[NonNegative, Field(le=10_000)]
    bandwidth_gbps: Annotated[Positive, Field(ge=1e-4, le=100)]
    window_bytes: Annotated[Positive, Field(ge=1500)] = tcp.WINDOW_BYTES

    @property
    def shape(self) -> LinkShape:
        """The same in seconds and bytes per second."""
        return emulated_link(self.latency_ms, self.bandwidth_gbps, self.window_bytes)


class ProbeRequest(Document):
    """Which link to measure; both ends read the same.

    host, port : where the end that listens is reached; with `emulated` neither is given.
    secret : known to both ends; whoever lacks it is refused.
    connections : numbers of TCP connections to try; it ends where more give no more.
    seconds : for which to send with each.
    patience_s : to wait for the other end.
    emulated : measure an emulated link, both ends of which are here.
    """

    host: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    port: Annotated[Count, Field(le=65_535)] = 29_599
    secret: Annotated[str, Field(min_length=16, max_length=200)] | None = None
    connections: Annotated[list[Annotated[Count, Field(le=64)]], Field(min_length=1, max_length=8)] = [
        1,
        2,
        4,
        8,
        16,
        32,
    ]
    seconds: Annotated[Positive, Field(le=60)] = 1.0
    patience_s: Annotated[Positive, Field(le=3600)] = 60.0
    emulated: EmulatedLink | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "ProbeRequest":
        if self.connections != sorted(set(self.connections)):
            raise InputError("connections", self.connections, "must ascend")
        for field in ("host", "port", "secret"):
            value = getattr(self, field)
            if self.emulated is None and value is None:
                raise InputError(field, value, "is needed, except for an `emulated` link")
            if self.emulated is not None and field in self.model_fields_set:
                raise InputError(
                    field, value, "both ends of an `emulated` link are on this machine: leave it out"
                )
        return self


@click.command("probe")
@click.argument("file")
@click.option("--listen", "listens", is_flag=True, help="Listen: the other end measures.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def command(file: str, listens: bool, as_json: bool) -> None:
    """Measure a link: its round trip time, and its rate by number of TCP connections.

    FILE (JSON or YAML, - for standard input), the same at both ends: host (the address of the end that
    listens), port (29599), secret (at least 16 characters), connections ([1, 2, 4, 8, 16, 32]; it stops when
    more are not faster), seconds (1; for each number), patience_s (60; how long to wait for the other end).

    Start it with --listen at `host`, and without at the other end, which measures and prints. It sends
    over the transport that training uses.

    With emulated {latency_ms, bandwidth_gbps, window_bytes} both ends are on this machine, and host, port and
    secret are left out. The result is what a run would measure on such a link.

    --json prints a `link`. Add `between` to it and use it in `links` of the files of `meridian plan` and
    `meridian train`.
    """
    request = parse(ProbeRequest, load_document(file))
    if listens and request.emulated is not None:
        raise InputError(
            "--listen", True, "both ends of an `emulated` link are on this machine: leave it out"
        )
    try:
        rates = _emulated(request) if request.emulated is not None else _one_end(request, listens)
    except TransportError as error:
        _fail(str(error))
    except TimeoutError:
        _fail(f"no answer from the other end within patience_s, {request.patience_s:g} s")
    answer = {"listened": True} if rates is None else _answer(rates)
    show(as_json, lambda: answer, lambda: ["Measured by the other end."] if rates is None else _lines(rates))


def _fail(reason: str) -> NoReturn:
    click.echo(f"meridian: {reason}", err=True)
    sys.exit(1)


def _one_end(request: ProbeRequest, listens: bool) -> LinkRates | None:
    """The measurement of this end; None if it listened."""
    assert request.host is not None
    assert request.secret is not None
    shared: dict[str, Any] = {
        "secret": request.secret,
        "trial": TRIAL,
        "counts": request.connections,
        "shape": None,
        "patience_s": request.patience_s,
    }
    if not listens:
        # This end dials; no one has to reach it.
        return measure(LOCALHOST, (request.host, request.port), seconds=request.seconds, **shared)
    try:
        listen(request.host, request.port, ready=_print_address, **shared)
    except InputError as error:
        if error.field != "ports":
            raise
        raise InputError("port", request.port, f"is in use on {request.host}") from None
    return None


def _print_address(address: Address) -> None:
    """Print the address that the other end should dial."""
    click.echo(f"Listening on {address[0]}:{address[1]}.", err=True)


def _emulated(request: ProbeRequest) -> LinkRates:
    """Both ends in this process, over an emulated link."""
    assert request.emulated is not None
    address: Future[Address] = Future()
    shared: dict[str, Any] = {
        "secret": secrets.token_hex(16),
        "trial": TRIAL,
        "counts": request.connections,
        "shape": request.emulated.shape,
        "patience_s": request.patience_s,
    }

    def other_end() -> None:
        with contextlib.suppress(TransportError, TimeoutError):  # the measuring end reports it
            listen(LOCALHOST, 0, ready=address.set_result, **shared)

    threading.Thread(target=other_end, name="probe-listen", daemon=True).start()
    return measure(LOCALHOST, address.result(request.patience_s), seconds=request.seconds, **shared)


def _answer(rates: LinkRates) -> dict[str, Any]:
    """The measurement as JSON, and `link`: its figures as in the files of other commands."""
    best = max(rate.gbps for rate in rates.rates)
    return rates.as_dict() | {"link": {"latency_ms": rates.rtt_ms / 2, "bandwidth_gbps": best}}


def _lines(rates: LinkRates) -> list[str]:
    best = max(rates.rates, key=lambda rate: rate.gbps)
    cells = [
        [str(rate.connections), number(rate.gbps, 4), f"{rate.gbps / best.gbps:.0%}"] for rate in rates.rates
    ]
    rtt = f"round trip {rates.rtt_ms:.2f} ms (latency {rates.rtt_ms / 2:.2f} ms)"
    return [rtt, "", *render(["connections", "Gbit/s", "of best"], cells)]
