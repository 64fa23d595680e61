"""A net: a body that makes features and a head that makes outputs, with the parameters that all start from."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b

import torch
from torch import Tensor, nn

from fedkin.codec import Params
from fedkin.errors import ConfigError
from fedkin.federation import Task

__all__ = ["BodyHead", "Net", "head_of"]


class BodyHead(nn.Module):
    """body: inputs -> features [batch, d]; head: features -> outputs [batch, classes].

    Modules that a method trains beside them (a projection, prototypes) are attributes of their own.
    """

    def __init__(self, body: nn.Module, head: nn.Module, extra: Mapping[str, nn.Module] | None = None) -> None:
        super().__init__()
        self.body, self.head = body, head
        for name, module in (extra or {}).items():
            self.add_module(name, module)

    def features(self, x: Tensor) -> Tensor:
        """Features [batch, d]."""
        return self.body(x)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [batch, classes]."""
        return self.head(self.body(x))  # type: ignore[no-any-return]

    @property
    def params(self) -> dict[str, Tensor]:
        """The trainable parameters by name, as a loss sees them."""
        return {name: p for name, p in self.named_parameters() if p.requires_grad}


class Net:
    """An architecture and its initial parameters (buffers included), named "body..." and "head...".

    A pair of modules starts from the values that it holds (a pretrained body stays so). extra: modules that are
    trained beside body and head, by name.

    >>> from torch import nn
    >>> net = Net(nn.Linear(4, 3), nn.Linear(3, 2))
    >>> sorted(net.initial)
    ['body.bias', 'body.weight', 'head.bias', 'head.weight']
    """

    def __init__(
        self, body: nn.Module, head: nn.Module, dtype: torch.dtype = torch.float32,
        extra: Mapping[str, nn.Module] | None = None,
    ) -> None:  # fmt: skip
        # One copy of all: weights that body and head share stay shared.
        self.module = BodyHead(*copy.deepcopy((body, head, dict(extra or {})))).to(dtype)
        self.dtype = dtype
        self.trainable = tuple(name for name, p in self.module.named_parameters() if p.requires_grad)
        named = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        self.initial: Params = _Fixed({name: tensor.detach().clone() for name, tensor in named.items()})
        if not self.trainable:
            raise ConfigError("model: the net has no trainable parameter")

    @classmethod
    def build(
        cls, make: Callable[[], tuple[nn.Module, nn.Module]], key: int, dtype: torch.dtype = torch.float32
    ) -> Net:
        """The net that `make` builds, with PyTorch's initialisation drawn from `key`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key)
            body, head = make()
        return cls(body, head, dtype)

    def extended(self, make: Callable[[], Mapping[str, nn.Module]], key: int) -> Net:
        """This net with more modules beside body and head, initialised from `key`; body and head keep their values.

        >>> from torch import nn
        >>> net = Net(nn.Linear(4, 3), nn.Linear(3, 2))
        >>> sorted(set(net.extended(lambda: {"projection": nn.Linear(3, 5)}, key=0).initial) - set(net.initial))
        ['projection.bias', 'projection.weight']
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key)
            made = make()
        return Net(self.module.body, self.module.head, self.dtype, {**self.extra, **made})

    @property
    def extra(self) -> dict[str, nn.Module]:
        """The modules beside body and head."""
        return {name: m for name, m in self.module.named_children() if name not in ("body", "head")}

    def scratch(self, device: torch.device | str = "cpu") -> BodyHead:
        """A module of its own for a runner to load parameters into."""
        return copy.deepcopy(self.module).to(device)

    def width(self, task: Task) -> int:
        """Length of a feature vector, for inputs of the task's shape."""
        module = self.scratch().eval()
        with torch.no_grad():
            z = module.features(torch.zeros(1, *task.shape, dtype=self.dtype))
        if z.ndim != 2:
            raise ConfigError(
                f"model: this method needs features [batch, d], the body gives {tuple(z.shape)} for one sample"
            )
        return int(z.shape[1])

    def check(self, task: Task) -> None:
        """Raise ConfigError unless inputs of the task's shape give features [1, d] and an output per class."""
        module = self.scratch().eval()
        try:
            with torch.no_grad():
                z = module.features(torch.zeros(1, *task.shape, dtype=self.dtype))
                out = module.head(z)
        except (RuntimeError, ValueError, IndexError) as error:
            raise ConfigError(f"model: the net does not take inputs of shape {task.shape} ({error})") from None
        pixels = task.target_shape if task.kind == "segmentation" else ()
        given = out.shape[1] if out.ndim > 1 else 0
        enough = given >= task.outputs if task.labels else given == task.outputs
        if not enough or tuple(out.shape[2:]) != pixels:
            expected = ", ".join(map(str, ("batch", task.outputs, *pixels)))
            raise ConfigError(f"model: expected outputs [{expected}], got {tuple(out.shape)} for one sample")

    def fingerprint(self) -> str:
        """A hash of the architecture and of the initial values."""
        digest = blake2b(repr(self.module).encode(), digest_size=16)
        for name, tensor in sorted(self.initial.items()):
            digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(self.initial[name].numel() for name in self.trainable)


class _Fixed(Mapping[str, Tensor]):
    """Parameters that nobody can change by accident: all participants start from this one object."""

    def __init__(self, params: dict[str, Tensor]) -> None:
        self._params = params

    def __getitem__(self, name: str) -> Tensor:
        return self._params[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._params)

    def __len__(self) -> int:
        return len(self._params)


def head_of(params: Params) -> dict[str, Tensor]:
    """The parameters of the head."""
    return {name: tensor for name, tensor in params.items() if name.startswith("head.")}
