"""Nets: a body that computes features, a head that computes outputs, and the initial parameters of all clients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from hashlib import blake2b
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fedkin.codec import Params
from fedkin.errors import ConfigError, MethodError
from fedkin.federation import Task
from fedkin.learning.devices import CPU, Precision, autocast, device_of, seeded
from fedkin.learning.frozen import trunk_of
from fedkin.untrusted import error_text


class BodyHead(nn.Module):
    """body: inputs -> features [batch, d]; head: features -> outputs [batch, classes].

    Other modules that a method trains (a projection, prototypes) are further attributes.
    """

    def __init__(self, body: nn.Module, head: nn.Module, extra: Mapping[str, nn.Module] | None = None) -> None:
        super().__init__()
        self.body, self.head = body, head
        for name, module in (extra or {}).items():
            self.add_module(name, module)
        self.precision: Precision = "float32"
        self.channels_last: bool | None = None  # how it is laid out; None: not known yet

    def features(self, x: Any) -> Tensor:
        """Return features [batch, d] of inputs [batch, ...], or of a dict of inputs."""
        return self.in_body(self.body, x)  # type: ignore[no-any-return]

    def in_body(self, function: Callable[[Any], Any], x: Any) -> Any:
        """Return function(x), where the function uses the body, in the precision of the body.

        x: a tensor, or several. For losses that need more from the body than its features.
        """
        if self.precision == "float32":
            return function(x)
        with autocast(device_of(self)):
            return pytree.tree_map(
                lambda out: out.float() if isinstance(out, Tensor) and out.is_floating_point() else out, function(x)
            )

    def forward(self, x: Any) -> Tensor:
        """Return outputs [batch, classes]."""
        return self.head(self.features(x))  # type: ignore[no-any-return]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Return all parameters and buffers by name."""
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}

    @property
    def params(self) -> dict[str, Tensor]:
        """Return the trainable parameters by name, as a loss sees them."""
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    @cached_property
    def sent_names(self) -> tuple[str, ...]:
        """Names of the tensors that training changes: parameters, then buffers; see Net."""
        frozen = self._frozen
        return (*self.params, *(name for name in self.persistent if not _inside(name, frozen)))

    @cached_property
    def persistent(self) -> tuple[str, ...]:
        """Names of the buffers that PyTorch stores in the state of the model."""
        modules = self.named_modules()
        passing = {f"{prefix}.{name}" for prefix, module in modules for name in module._non_persistent_buffers_set}
        return tuple(name for name, _ in self.named_buffers() if name not in passing)

    @cached_property
    def frozen_norm_layers(self) -> tuple[str, ...]:
        """Names of frozen layers with running statistics, which stay in evaluation mode."""
        frozen = self._frozen
        return tuple(
            name for name, module in self.named_modules()
            if getattr(module, "track_running_stats", False) and _inside(f"{name}.", frozen)
        )  # fmt: skip

    @property
    def _frozen(self) -> tuple[str, ...]:
        """Names of the modules that have parameters, but no trainable ones."""
        return tuple(
            name for name, module in self.named_modules()
            if not any(p.requires_grad for p in module.parameters()) and any(True for _ in module.parameters())
        )  # fmt: skip

    @cached_property
    def _constant(self) -> tuple[str, ...]:
        """Names of the buffers of frozen modules, except running statistics in evaluation mode."""
        return tuple(n for n in self.persistent if n not in self.sent_names and not _inside(n, self.frozen_norm_layers))

    def constants(self) -> dict[str, tuple[int, int]]:
        """Return, by name, the identity and version of each buffer that must not change."""
        return {name: (id(buffer), buffer._version) for name in self._constant for buffer in [self.get_buffer(name)]}

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for name in self.frozen_norm_layers if mode else ():
            self.get_submodule(name).eval()
        return self


def _inside(name: str, modules: tuple[str, ...]) -> bool:
    """Whether a parameter or a buffer belongs to one of these modules, or to a module inside them."""
    return any(name.startswith(f"{module}.") for module in modules)


class Net:
    """An architecture and its initial parameters, named "body..." and "head...".

    The initial values are the current values of the two modules (a pretrained body stays pretrained). extra:
    further modules that are trained, by name.

    `initial` has everything that training changes; nothing else is sent or stored for a client. It contains:
    - parameters with `requires_grad`;
    - persistent buffers, except those of frozen modules (modules that have parameters, but no trainable ones).
      Constants that need not be sent are registered with `persistent=False`, as for PyTorch's own checkpoints.
    Frozen tensors stay in the net, which each process has once. Layers with running statistics (batch normalisation)
    inside a frozen module stay in evaluation mode, so that their statistics are frozen too: a frozen pretrained body
    computes the same features at every client, in training and in use. Dropout in a frozen module works as elsewhere.

    >>> from torch import nn
    >>> net = Net(nn.Linear(4, 3), nn.Linear(3, 2))
    >>> sorted(net.initial)
    ['body.bias', 'body.weight', 'head.bias', 'head.weight']
    """

    def __init__(
        self, body: nn.Module, head: nn.Module, dtype: torch.dtype = torch.float32,
        extra: Mapping[str, nn.Module] | None = None, precision: Precision = "float32",
    ) -> None:  # fmt: skip
        # All modules are copied together, so that weights that body and head share stay shared.
        parts = BodyHead(*copy.deepcopy((body, head, dict(extra or {}))))
        _check_cast(parts, dtype)
        self.module = parts.to(dtype)
        self.dtype = dtype
        self.precision: Precision = precision
        self.module.precision = precision
        self.trainable = tuple(self.module.params)
        named = self.module.tensors
        sent = {name: named[name].detach() for name in self.module.sent_names}
        copies = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in sent.items()}
        self.initial: Params = _Fixed(copies)
        if not self.trainable:
            raise ConfigError("model: the net has no trainable parameter")
        self.channels_last: bool | None = None  # whether to compute with channels last; None: not decided yet

    @classmethod
    def build(
        cls, make: Callable[[], tuple[nn.Module, nn.Module]], key: int, dtype: torch.dtype = torch.float32,
        precision: Precision = "float32",
    ) -> Net:  # fmt: skip
        """Return the net that `make` builds, with PyTorch's initialisation drawn from `key`."""
        with seeded(key):
            body, head = make()
        return cls(body, head, dtype, precision=precision)

    def extended(self, make: Callable[[], Mapping[str, nn.Module]], key: int) -> Net:
        """Return this net with further modules, initialised from `key`; body and head keep their values.

        >>> from torch import nn
        >>> net = Net(nn.Linear(4, 3), nn.Linear(3, 2))
        >>> sorted(set(net.extended(lambda: {"projection": nn.Linear(3, 5)}, key=0).initial) - set(net.initial))
        ['projection.bias', 'projection.weight']
        """
        with seeded(key):
            modules = make()
        return Net(self.module.body, self.module.head, self.dtype, {**self.extra, **modules}, self.precision)

    @property
    def extra(self) -> dict[str, nn.Module]:
        """The modules other than body and head."""
        return {name: m for name, m in self.module.named_children() if name not in ("body", "head")}

    @property
    def frozen(self) -> dict[str, Tensor]:
        """The tensors that training does not change: parameters, then persistent buffers."""
        kept = {*self.module.persistent, *(name for name, _ in self.module.named_parameters())}
        return {name: t for name, t in self.module.tensors.items() if name in kept and name not in self.initial}

    def scratch(self, device: torch.device | str = "cpu") -> BodyHead:
        """Return a module into which a runner loads parameters.

        On the CPU, its frozen tensors are those of the net: all modules share one copy, and no code may write to it.
        """
        if torch.device(device) == CPU:
            trunk = trunk_of(self.module.body)
            shared = [*self.frozen.values(), *([] if trunk is None else [trunk.cache])]
            return copy.deepcopy(self.module, {id(each): each for each in shared})
        module = copy.deepcopy(self.module).to(device)
        for tensor in module.tensors.values():
            tensor.data = tensor.data.contiguous()
        return module

    def width(self, task: Task) -> int:
        """Return the length of a feature vector, for inputs of the task's shape."""
        z = self._answer(task, head=False)
        if z.ndim != 2:
            shape = f"the body gives {tuple(z.shape)} for one sample"
            raise ConfigError(f"model: this method needs features [batch, d], {shape}")
        return int(z.shape[1])

    def check(self, task: Task) -> None:
        """Raise ConfigError unless inputs of the task's shape give features [1, d] and an output per class."""
        out = self._answer(task, head=True)
        pixels = task.target_shape if task.kind == "segmentation" else ()
        outputs = out.shape[1] if out.ndim > 1 else 0
        enough = outputs >= task.outputs if task.labels else outputs == task.outputs
        if not enough or tuple(out.shape[2:]) != pixels:
            expected = ", ".join(map(str, ("batch", task.outputs, *pixels)))
            raise ConfigError(f"model: expected outputs [{expected}], got {tuple(out.shape)} for one sample")

    def _answer(self, task: Task, head: bool) -> Tensor:
        """Return the features, or outputs, of one made-up sample; raises ConfigError."""
        module = self.scratch().eval()
        # Numbers are 0, since a net may read codes from them.
        inputs = pytree.tree_map(
            lambda part: torch.zeros_like(part[:1]) if part.is_floating_point() else part[:1],
            sample_inputs(task, self.dtype),
        )
        try:
            with torch.no_grad():
                z = module.features(inputs)
                return module.head(z) if head else z
        except (RuntimeError, ValueError, IndexError, TypeError, KeyError, AttributeError) as error:
            codes = f" where {', '.join(task.codes)} holds token ids or category codes" if task.codes else ""
            why = f"{type(error).__name__}: {error_text(error)}"
            raise ConfigError(f"model: the net does not take inputs of shape {task.shape}{codes} ({why})") from None

    def fingerprint(self) -> str:
        """Return a hash of the architecture and of the initial values."""
        digest = blake2b(repr(self.module).encode(), digest_size=16)
        for name, tensor in sorted({**self.module.tensors, **self.initial}.items()):
            digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(self.initial[name].numel() for name in self.trainable)


def sample_inputs(task: Task, dtype: torch.dtype) -> Any:
    """Return two made-up inputs of the task's shape: ones for token ids and codes, else values from -1 to 1."""
    inputs: dict[str, Tensor] = {}
    for name, shape in task.shapes.items():
        size = torch.Size((2, *shape))
        values = torch.linspace(-1, 1, size.numel(), dtype=dtype).reshape(size)
        inputs[name] = torch.ones(size, dtype=torch.int64) if name in task.codes else values
    return inputs if isinstance(task.shape, Mapping) else inputs["x"]


def _check_cast(module: nn.Module, dtype: torch.dtype) -> None:
    """Raise ConfigError for tensors that are complex, or whose values do not fit into the net's type."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_complex():
            raise ConfigError(
                f"model: {name!r} is complex ({tensor.dtype}), which is not trained here: hold its real and its "
                "imaginary part in two tensors (torch.view_as_real)"
            )
        if not tensor.is_floating_point() or torch.promote_types(tensor.dtype, dtype) == dtype:
            continue
        values = tensor.detach()
        if not torch.allclose(values.to(dtype).to(values.dtype), values, rtol=0, atol=0, equal_nan=True):
            raise ConfigError(
                f"model: {name!r} holds values of {values.dtype} that {dtype} does not: hand over module.to({dtype}), "
                "or set run.dtype = 'float64'"
            )


class _Fixed(Mapping[str, Tensor]):
    """Read-only parameters: all participants start from this one object. Unlike MappingProxyType it can be copied."""

    def __init__(self, params: dict[str, Tensor]) -> None:
        self._params = params

    def __getitem__(self, name: str) -> Tensor:
        return self._params[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._params)

    def __len__(self) -> int:
        return len(self._params)


def _redraw(part: nn.Module) -> None:
    parameters = list(part.parameters(recurse=False))
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if parameters and not trained:
        return
    if callable(reset := getattr(part, "reset_parameters", None)):
        reset()
        return
    for parameter in trained:
        parameter.copy_(parameter.flatten()[torch.randperm(parameter.numel())].reshape(parameter.shape))


def redrawn(net: Net, seed: int) -> dict[str, Tensor]:
    """The net's initial parameters with the trainable ones drawn anew from `seed`.

    Modules with `reset_parameters` draw as they did when they were made. Parameters of other modules are shuffled
    entry by entry, which keeps their scale. Buffers and frozen parameters stay.
    """
    module = copy.deepcopy(net.module)
    with seeded(seed), torch.no_grad():
        for part in module.modules():
            _redraw(part)
    drawn = {name: tensor.detach().clone() for name, tensor in module.named_parameters()}
    return {name: drawn[name] if name in net.trainable else tensor for name, tensor in net.initial.items()}


def head_of(params: Params) -> dict[str, Tensor]:
    """Return the parameters of the head."""
    return {name: tensor for name, tensor in params.items() if name.startswith("head.")}


def body_of(params: Params) -> dict[str, Tensor]:
    """Return all parameters but the head's."""
    return {name: tensor for name, tensor in params.items() if not name.startswith("head.")}


def check_fit(params: Params, expected: Mapping[str, Tensor]) -> None:
    """Raise MethodError unless the parameters have the names and shapes of the net's own."""
    if expected.keys() != params.keys():
        missing, extra = sorted(expected.keys() - params.keys()), sorted(params.keys() - expected.keys())
        raise MethodError(f"parameters do not fit the net: missing {missing}, not in it {extra}")
    for name, tensor in expected.items():
        if tensor.shape != params[name].shape:
            raise MethodError(f"{name}: shape {tuple(params[name].shape)}, the net's is {tuple(tensor.shape)}")
