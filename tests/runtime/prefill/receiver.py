"""A receiver of KV caches, written from docs/dev/kv-handover.md alone: it imports nothing of the engine."""

import hashlib
import hmac
import json
import secrets
import socket
import struct
import threading
from typing import Any

import torch
import xxhash

HEAD = struct.Struct("<HIQQ")
HELLO = struct.Struct("<8sHIIQ16sHH32s")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class WrongError(Exception):
    """What came is not what the document says."""


def send(connected: socket.socket, document: dict[str, Any]) -> None:
    text = json.dumps(document).encode()
    connected.sendall(HEAD.pack(0x4D4B, len(text), 0, xxhash.xxh3_64_intdigest(text)) + text)


def receive(connected: socket.socket) -> tuple[dict[str, Any], bytes]:
    magic, text_bytes, raw_bytes, checksum = HEAD.unpack(exactly(connected, HEAD.size))
    text, raw = exactly(connected, text_bytes), exactly(connected, raw_bytes)
    if magic != 0x4D4B or checksum != xxhash.xxh3_64_intdigest(text + raw):
        raise WrongError("no frame")
    return json.loads(text), raw


def exactly(connected: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connected.recv(count - len(data))
        if not piece:
            raise WrongError("the sender left")
        data += piece
    return data


def mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def digest_of(request: str) -> bytes:
    return hashlib.blake2b(f"kv/{request}".encode(), digest_size=16).digest()


class Receiver:
    """Listens on loopback for caches of the requests in `keys`, each stage of which it takes once.

    proves_with : another key than the request's.  refuses : the reason, where it takes nothing.
    parts : by request and stage, (shape, keys and values).  refusals : why connections were turned away.
    heard : the bytes that each sender said in its handshake.
    """

    def __init__(self, keys: dict[str, str], *, proves_with: str = "", refuses: str = "") -> None:
        self.keys, self._proves_with, self._refuses = keys, proves_with, refuses
        self.parts: dict[tuple[str, int], tuple[dict[str, Any], torch.Tensor]] = {}
        self.refusals: list[str] = []
        self.heard: list[tuple[bytes, bytes]] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._work, daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _work(self) -> None:
        while True:
            try:
                connected, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._take, args=(connected,), daemon=True).start()

    def _take(self, connected: socket.socket) -> None:
        with connected:
            try:
                self._cache(connected, *self._greeted(connected))
            except (WrongError, OSError) as error:
                self.refusals.append(str(error))

    def _greeted(self, connected: socket.socket) -> tuple[str, int]:
        """(request, stage) of a sender that has proved that it knows the key."""
        hello = exactly(connected, HELLO.size)
        magic, version, _, _, follows, digest, stage, _, _ = HELLO.unpack(hello)
        request = next((name for name in self.keys if digest_of(name) == digest), None)
        if magic != b"MERIDWAN" or request is None or (request, stage) in self.parts:
            raise WrongError("nobody waits for it")
        status = 1 if version != 3 else 3 if follows != 1 else 0
        key = bytes.fromhex(self.keys[request])
        challenge = struct.pack("<B32sd16s", status, secrets.token_bytes(32), 0.0, secrets.token_bytes(16))
        shown = bytes.fromhex(self._proves_with) or key
        connected.sendall(challenge + mac(shown, b"listener", hello, challenge))
        proof, theirs = exactly(connected, 24), exactly(connected, 32)
        self.heard.append((hello, proof + theirs))
        if not hmac.compare_digest(theirs, mac(key, b"dialler", hello, challenge, proof)):
            connected.sendall(b"\5")
            raise WrongError("wrong proof")
        connected.sendall(b"\0" + secrets.token_bytes(16))
        return request, stage

    def _cache(self, connected: socket.socket, request: str, stage: int) -> None:
        shape, _ = receive(connected)
        if (shape["request"], shape["stage"]) != (request, stage):
            raise WrongError("of another request")
        pieces = []
        for number in range(-(-shape["tokens"] // shape["block_tokens"])):
            frame, raw = receive(connected)
            if frame["block"] != number:
                raise WrongError("a block out of order")
            size = (2, shape["layers"], shape["kv_heads"], -1, shape["head_size"])
            pieces.append(torch.frombuffer(bytearray(raw), dtype=DTYPES[shape["dtype"]]).view(size))
        if self._refuses:
            send(connected, {"refused": self._refuses})
            return
        self.parts[request, stage] = shape, torch.cat(pieces, dim=3)
        send(connected, {"taken": request})

    def layers(self, request: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """(keys, values) of every layer, each (kv heads, tokens, head size), of all stages in order."""
        layers: list[tuple[torch.Tensor, torch.Tensor]] = []
        for stage in sorted(number for name, number in self.parts if name == request):
            shape, part = self.parts[request, stage]
            if shape["first_layer"] != len(layers):
                raise WrongError("layers are missing")
            layers += [(part[0, layer], part[1, layer]) for layer in range(shape["layers"])]
        return layers
