"""A stand-in for the library of NVML, for machines that have none: it answers what pynvml asks."""

import ctypes
from dataclasses import dataclass, field
from typing import Any

import pynvml

OK, NOT_SUPPORTED, NOT_FOUND, NOT_LOADED = 0, 3, 6, 9  # nvmlReturn_t


@dataclass
class Card:
    """What a GPU says; None: it does not support the question."""

    utilization: int | None = 97
    used: int = 71_000_000_000
    total: int = 85_000_000_000
    celsius: int | None = 64
    milliwatts: int | None = 612_500


@dataclass
class Library:
    """The library with `cards` by UUID. `status`: of its initialization.

    old : it lacks what drivers before 2024 lack.
    """

    cards: dict[str, Card] = field(default_factory=dict)
    status: int = OK
    old: bool = False
    asked: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        newer = name in ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetMemoryInfo_v2")
        answer = None if newer and self.old else ANSWERS.get(name)
        if answer is None:
            raise AttributeError(name)

        def call(*about: Any) -> int:
            self.asked.append(name)
            return int(answer(self, *about))

        return call

    def _init(self, _flags: int) -> int:
        return self.status

    def _by_uuid(self, uuid: ctypes.c_char_p, device: Any) -> int:
        names = list(self.cards)
        name = (uuid.value or b"").decode()
        if name not in names:
            return NOT_FOUND
        ctypes.cast(ctypes.byref(device._obj), ctypes.POINTER(ctypes.c_void_p))[0] = 1 + names.index(name)
        return OK

    def _card(self, handle: Any) -> Card:
        place = ctypes.cast(ctypes.byref(handle), ctypes.POINTER(ctypes.c_void_p))[0]
        return list(self.cards.values())[place - 1]

    def _rates(self, handle: Any, rates: Any) -> int:
        percent = self._card(handle).utilization
        if percent is None:
            return NOT_SUPPORTED
        rates._obj.gpu = percent
        return OK

    def _memory(self, handle: Any, memory: Any) -> int:
        card = self._card(handle)
        memory._obj.used, memory._obj.total = card.used + 500_000_000, card.total  # and what is reserved
        return OK

    def _memory_v2(self, handle: Any, memory: Any) -> int:
        card = self._card(handle)
        memory._obj.used, memory._obj.total = card.used, card.total
        return OK

    def _temperature_v(self, handle: Any, temperature: Any) -> int:
        celsius = self._card(handle).celsius
        if celsius is None:
            return NOT_SUPPORTED
        temperature._obj.temperature = celsius
        return OK

    def _temperature(self, handle: Any, _sensor: Any, celsius: Any) -> int:
        known = self._card(handle).celsius
        if known is None:
            return NOT_SUPPORTED
        celsius._obj.value = known
        return OK

    def _power(self, handle: Any, watts: Any) -> int:
        known = self._card(handle).milliwatts
        if known is None:
            return NOT_SUPPORTED
        watts._obj.value = known
        return OK


ANSWERS = {
    "nvmlInitWithFlags": Library._init,
    "nvmlDeviceGetHandleByUUID": Library._by_uuid,
    "nvmlDeviceGetUtilizationRates": Library._rates,
    "nvmlDeviceGetMemoryInfo_v2": Library._memory_v2,
    "nvmlDeviceGetMemoryInfo": Library._memory,
    "nvmlDeviceGetTemperatureV": Library._temperature_v,
    "nvmlDeviceGetTemperature": Library._temperature,
    "nvmlDeviceGetPowerUsage": Library._power,
}


def stand_in(monkeypatch: Any, library: Library | None) -> None:
    """Let pynvml find `library`; None: the machine has none."""
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    if library is None:

        def none(_name: str) -> None:
            raise OSError("no such library")

        monkeypatch.setattr(pynvml, "CDLL", none)
