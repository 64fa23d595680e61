"""The precision in which the bodies of nets are computed: float32, or bfloat16 by torch's autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch

from fedkin.errors import ConfigError

__all__ = ["Precision", "autocast", "check_precision"]

# "float32" computes in the type of the parameters. "bf16" computes the body in bfloat16; parameters, gradients, the
# head and the loss keep their type.
Precision = Literal["float32", "bf16"]
_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")  # of torch.cpu.get_capabilities, on x86 and on ARM


def check_precision(precision: Precision, device: torch.device) -> None:
    """Raise ConfigError if this machine's device does not compute in this precision."""
    if precision == "bf16" and not _has_bf16(device):
        what = "the GPU" if device.type == "cuda" else "the processor of this machine"
        raise ConfigError(
            f"run.precision: 'bf16', but {what} has no instructions for bfloat16, and would be slower with it; set "
            "run.precision = 'float32'"
        )


def _has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    # Older versions of torch do not tell.
    capabilities = getattr(torch.cpu, "get_capabilities", dict[str, bool])()
    return any(capabilities.get(flag) for flag in _FLAGS)


def autocast(device: torch.device, on: bool = True) -> AbstractContextManager[Any]:
    """Return a context in which modules compute in bfloat16, or (on=False) in the type of their parameters."""
    if not on and not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16, enabled=on)
