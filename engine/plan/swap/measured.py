"""Measured layers (ATOM §III-D), from what `meridian profile --swap FILE --json` prints."""

from typing import Any

from engine.errors import InputError


def layers_of(profile: Any, *, gradients: str, source: str) -> Any:
    """The layers of `profile`, which `SwapRequest` then checks.

    gradients : where those of the plan are, "host" or "device".
    source : of the profile, for the error.

    Raises
    ------
    InputError
        The profile has no layers, or its memory was measured with gradients elsewhere.
    """
    if not isinstance(profile, dict) or "layers" not in profile:
        allowed = "must have the field layers, as `meridian profile --swap FILE --json` prints it"
        raise InputError("layers", source, allowed)
    if profile.get("gradients", gradients) != gradients:
        allowed = f"must be {profile['gradients']}: the memory of layers was measured for that"
        raise InputError("gradients", gradients, allowed)
    return profile["layers"]
