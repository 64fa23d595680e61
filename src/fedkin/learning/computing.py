"""How nets are computed: the precision of their bodies, the layout of convolutions, and whose code computes them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import torch

from fedkin.errors import ConfigError
from fedkin.untrusted import said

__all__ = ["DEFAULT", "Computing", "Precision", "Source", "check_kernels", "check_precision", "half"]

Precision = Literal["float32", "bf16"]
Source = Literal["torch", "numba"]
_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")  # of torch.cpu.get_capabilities, on x86 and on ARM


@dataclass(frozen=True)
class Computing:
    """How a net is computed.

    precision: "float32" computes in the type of the parameters; "bf16" computes the body in bfloat16 by torch's
    autocast. Parameters, gradients, the head and the loss keep their type. channels_last: whether convolutions may be
    computed with channels last. kernels: "numba" computes small convolutions by kernels that numba compiles, where one
    client at a time is trained or evaluated on a CPU.
    """

    precision: Precision = "float32"
    channels_last: bool = True
    kernels: Source = "torch"


DEFAULT = Computing()


def check_precision(precision: Precision, device: torch.device) -> None:
    """Raise ConfigError if this machine's device does not compute in this precision."""
    if precision == "bf16" and not _has_bf16(device):
        what = "the GPU" if device.type == "cuda" else "the processor of this machine"
        raise ConfigError(
            f"run.precision: 'bf16', but {what} has no instructions for bfloat16, and would be slower with it; set "
            "run.precision = 'float32'"
        )


def check_kernels(kernels: Source) -> None:
    """Raise ConfigError if these kernels cannot be compiled here."""
    if kernels == "torch":
        return
    try:
        import_module("numba")
    except ImportError as error:
        raise ConfigError(
            f"run.kernels: 'numba' cannot be imported ({said(error)}): pip install 'fedkin[kernels]', or set "
            "run.kernels = 'torch'"
        ) from None


def _has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    try:
        told = torch.cpu.get_capabilities()
    except AttributeError:  # before torch 2.9
        return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", bool)())
    return any(told.get(flag) for flag in _FLAGS)


def half(device: torch.device, on: bool = True) -> AbstractContextManager[Any]:
    """Return a context in which modules compute in bfloat16, or (on=False) in the type of their parameters."""
    if not on and not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16, enabled=on)
