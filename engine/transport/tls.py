"""Mutual TLS between nodes: certificates as files, both sides show one."""

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import InputError

if TYPE_CHECKING:
    from engine.job.job import TrainJob

# What a socket that must not block raises when it has to wait.
WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Paths of PEM files: this node's certificate and key, and the authority that signed those of all nodes.

    Names in certificates are not compared with addresses: who has a certificate of this authority is a node,
    and which rank it is, the run's secret proves.
    """

    certificate: Path
    key: Path
    authority: Path

    @classmethod
    def of(cls, job: "TrainJob") -> "TlsFiles | None":
        """The contexts that the job names; None if its ranks do not encrypt."""
        return None if job.tls is None else cls(**{name: Path(path) for name, path in job.tls})

    def context(self, *, listens: bool) -> ssl.SSLContext:
        """TLS 1.3 for one side. Raises InputError that names the file that does not do."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if listens else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        if listens:
            context.num_tickets = 0  # no session is taken up again
        try:
            context.load_verify_locations(self.authority)
        except OSError as error:
            raise InputError("tls.authority", str(self.authority), f"must be a PEM file: {error}") from None
        try:
            context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            allowed = f"must be a PEM file that fits the key {self.key}: {error}"
            raise InputError("tls.certificate", str(self.certificate), allowed) from None
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsContexts:
    """TLS contexts that wrap the sockets of an endpoint; none if TLS is off."""

    dials: ssl.SSLContext | None = None
    listens: ssl.SSLContext | None = None

    @classmethod
    def of(cls, files: TlsFiles | None) -> "TlsContexts":
        """Both sides' contexts. Raises InputError."""
        if files is None:
            return cls()
        return cls(dials=files.context(listens=False), listens=files.context(listens=True))

    def wrap(self, connected: socket.socket, *, listens: bool) -> socket.socket:
        """`connected` itself, or inside TLS with its handshake still to come; does not block."""
        context = self.listens if listens else self.dials
        if context is None:
            return connected
        return context.wrap_socket(connected, server_side=listens, do_handshake_on_connect=False)
