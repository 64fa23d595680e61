"""Devices, the precision in which they compute, and torch's generator of random numbers.

A device is the CPU, or a GPU whose memory keeps the samples that were copied there.

States, messages and graphs are always on the CPU. The parameters of a job go to the device when the job begins, and
come back when it ends. In between, nothing waits for the CPU.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from threading import RLock
from typing import Any, Literal
from weakref import finalize

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from fedkin.codec import mapped
from fedkin.errors import ConfigError
from fedkin.federation import Samples
from fedkin.federation.inputs import map_arrays, parts

CPU = torch.device("cpu")
_NAME = re.compile(r"cpu|cuda(:\d+)?")


def checked(name: str) -> str:
    """Return `name` if it can name a device; raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"no {name!r}; expected 'cpu', 'cuda', or 'cuda:1' for the second GPU")
    return name


def opened(name: str) -> torch.device:
    """Return the device of that name; raises ConfigError if there is none, or no such GPU here."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device: {name!r} is none; expected 'cpu', 'cuda', or 'cuda:1' for the second GPU") from None
    if device.type != "cuda":
        return device
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        seen = f"{count} of them here" if count else "no GPU here (a build for CPUs only, no driver, or no GPU)"
        raise ConfigError(f"device: {name!r}, but torch {torch.__version__} sees {seen}; choose 'cpu'")
    # cuBLAS reads this at the first matrix product of a process. Without it, the order of its sums can change.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return device


def title(device: torch.device) -> str | None:
    """Return the name of the GPU; None for the CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


class one_thread:
    """A context with one OpenMP thread: more threads change the bits, and on a busy machine they cost time."""

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self.before)


@contextmanager
def exact(device: torch.device) -> Iterator[None]:
    """Make a GPU deterministic, and its float32 as precise as the CPU's, while this context is open."""
    if device.type != "cuda":
        yield
        return
    flags = [
        (torch.backends.cudnn, "benchmark", False),
        (torch.backends.cudnn, "allow_tf32", False),
        (torch.backends.cuda.matmul, "allow_tf32", False),
        # Filling new memory costs a kernel for each tensor, and no code here reads memory before it writes to it.
        (torch.utils.deterministic, "fill_uninitialized_memory", False),
    ]
    before = [getattr(owner, name) for owner, name, _ in flags]
    strict, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        for owner, name, value in flags:
            setattr(owner, name, value)
        torch.use_deterministic_algorithms(True, warn_only=True)
        yield
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=warned)
        for (owner, name, _), value in zip(flags, before, strict=True):
            setattr(owner, name, value)


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module's parameters."""
    return next(module.parameters()).device


def arranged(tensor: Any, last: bool = True) -> Any:
    """Return images or kernels, also those in a dict, with channels last; on a GPU, or if not `last`, with them first.

    Convolutions on a CPU run about 1.3 times as fast in training and 2 times in inference.
    """
    if isinstance(tensor, dict):
        return {name: arranged(part, last) for name, part in tensor.items()}
    if tensor.device != CPU or not last:
        return usual(tensor)
    if tensor.ndim != 4:
        return tensor
    laid = tensor.contiguous(memory_format=torch.channels_last)
    _, channels, height, width = laid.shape
    # With one channel the layouts differ in this stride alone. torch looks at it to choose the layout of what a
    # convolution gives, and max pooling takes ten times as long with channels first.
    return laid.as_strided(laid.shape, (height * width, 1, width, 1)) if channels == 1 else laid


def usual(tensor: Tensor) -> Tensor:
    """Return a tensor in the usual layout, also with the usual strides along axes of length 1."""
    laid = tensor.contiguous()
    return laid.reshape(-1).view(laid.shape) if laid.ndim == 4 and laid.shape[1] == 1 else laid


def moved(tree: Any, device: torch.device) -> Any:
    """Return a tree with all its tensors on the device; tensors that are already there stay the same objects."""
    return mapped(tree, lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf)


def plain(tree: Any) -> Any:
    """Return a tree with all its tensors in the usual layout, in which they are sent and stored."""
    return mapped(tree, lambda leaf: usual(leaf) if isinstance(leaf, Tensor) else leaf)


def drawn(batches: Sequence[npt.NDArray[np.int64]], device: torch.device) -> Sequence[Tensor]:
    """Return the row numbers of each step on the device; all steps are copied there at once."""
    if not batches:
        return []
    return torch.split(torch.from_numpy(np.concatenate(batches)).to(device), [len(rows) for rows in batches])


class Resident:
    """Samples in the memory of a device.

    An array is copied to the device once, for all clients that index it, and stays there while it is in use.
    limit: bytes that may stay on the device (None: half of a GPU's free memory; no limit on other devices). Of arrays
    beyond the limit, a job gets only its own rows, which leave the device when the job ends.
    """

    def __init__(self, device: torch.device = CPU, limit: int | None = None) -> None:
        self.device, self.limit = device, limit
        if limit is None and device.type == "cuda":
            # Memory that torch reserves for its next tensors is free too.
            spare = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            self.limit = (torch.cuda.mem_get_info(device)[0] + spare) // 2
        self.copies: MutableMapping[Tensor, Tensor] = WeakTensorKeyDictionary()
        self.bytes = [0]

    def __call__(self, samples: Samples) -> Samples:
        """Return the same samples on the device."""
        if self.device == CPU:
            return samples
        rows = samples.rows
        new = sum(array.nbytes for array in (*parts(samples.x).values(), samples.y) if array not in self.copies)
        if not new or self.limit is None or new + self.bytes[0] <= self.limit:
            x, y = map_arrays(self._put, samples.x), self._put(samples.y)
            return replace(samples, x=x, y=y, rows=None if rows is None else self._put(rows))
        own = samples.own()
        return replace(own, x=map_arrays(lambda part: part.to(self.device), own.x), y=own.y.to(self.device))

    def _put(self, array: Tensor) -> Tensor:
        if array not in self.copies:
            self.copies[array] = array.to(self.device)
            self.bytes[0] += array.nbytes
            finalize(array, _subtract, self.bytes, array.nbytes)
        return self.copies[array]


def _subtract(total: list[int], count: int) -> None:
    total[0] -= count


# -- random numbers ---------------------------------------------------------------------------------------------------

# All threads share the generator: a thread that seeds it between two draws of another changes the second draw.
rng_lock = RLock()


@contextmanager
def seeded(key: int | None = None, device: torch.device | None = None) -> Iterator[None]:
    """Let only this thread draw; then restore the generators' states.

    key: seed of the processor's generator (None: its current state). device: a GPU whose generator is restored too.

    >>> def draw() -> torch.Tensor:
    ...     with seeded(3):
    ...         return torch.rand(2)
    >>> torch.equal(draw(), draw())
    True
    """
    with rng_lock, torch.random.fork_rng(devices=[device] if device is not None and device.type == "cuda" else []):
        if key is not None:
            torch.default_generator.manual_seed(int(key))  # torch.manual_seed formats a traceback for each kind of GPU
        yield


# -- precision --------------------------------------------------------------------------------------------------------

# "float32" computes in the type of the parameters. "bf16" computes the body in bfloat16; parameters, gradients, the
# head and the loss keep their type.
Precision = Literal["float32", "bf16"]
_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")  # of torch.cpu.get_capabilities, on x86 and on ARM


def check_precision(precision: Precision, device: torch.device) -> None:
    """Raise ConfigError if this machine's device does not compute in this precision."""
    if precision == "bf16" and not _has_bf16(device):
        what = "the GPU" if device.type == "cuda" else "the processor of this machine"
        why = f"{what} has no instructions for bfloat16, and would be slower with it"
        raise ConfigError(f"run.precision: 'bf16', but {why}; set run.precision = 'float32'")


def _has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    # Older versions of torch do not have this function.
    capabilities = getattr(torch.cpu, "get_capabilities", dict[str, bool])()
    return any(capabilities.get(flag) for flag in _FLAGS)


def autocast(device: torch.device, on: bool = True) -> AbstractContextManager[Any]:
    """Return a context in which modules compute in bfloat16, or (on=False) in the type of their parameters."""
    if not on and not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16, enabled=on)
