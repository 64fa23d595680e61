"""A net: a body that makes features and a head that makes outputs, with the parameters that all start from."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedkin.errors import ConfigError
from fedkin.federation import Task
from fedkin.flow import Params

__all__ = ["BodyHead", "Net", "head_of"]


class BodyHead(nn.Module):
    """body: inputs -> features [batch, d]; head: features -> outputs [batch, classes]."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def features(self, x: Tensor) -> Tensor:
        """Features [batch, d]."""
        return self.body(x)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [batch, classes]."""
        return self.head(self.body(x))  # type: ignore[no-any-return]

    @property
    def params(self) -> dict[str, Tensor]:
        """The trainable parameters by name, as a loss sees them."""
        return dict(self.named_parameters())


class Net:
    """An architecture and its initial parameters (buffers included), named "body..." and "head...".

    A pair of modules starts from the values that it holds (a pretrained body stays so).

    >>> from torch import nn
    >>> net = Net(nn.Linear(4, 3), nn.Linear(3, 2))
    >>> sorted(net.initial)
    ['body.bias', 'body.weight', 'head.bias', 'head.weight']
    """

    def __init__(self, body: nn.Module, head: nn.Module, dtype: torch.dtype = torch.float32) -> None:
        self.module = BodyHead(copy.deepcopy(body), copy.deepcopy(head)).to(dtype)
        self.dtype = dtype
        self.trainable = tuple(name for name, p in self.module.named_parameters() if p.requires_grad)
        self.initial: Params = {name: tensor.detach().clone() for name, tensor in self.module.state_dict().items()}
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

    def scratch(self, device: str = "cpu") -> BodyHead:
        """A module of its own for a runner to load parameters into."""
        return copy.deepcopy(self.module).to(device)

    def width(self, task: Task) -> int:
        """Length of a feature vector, for inputs of the task's shape."""
        module = self.scratch().eval()
        with torch.no_grad():
            return int(module.features(torch.zeros(1, *task.shape, dtype=self.dtype)).shape[1])

    def parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(self.initial[name].numel() for name in self.trainable)


def head_of(params: Params) -> dict[str, Tensor]:
    """The parameters of the head."""
    return {name: tensor for name, tensor in params.items() if name.startswith("head.")}
