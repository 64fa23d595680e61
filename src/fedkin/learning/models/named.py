"""The nets that an experiment can name, and "mixed", which gives each client one of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from torch import nn

from fedkin.errors import ConfigError, nearest
from fedkin.federation import Task
from fedkin.learning.models import nets, vision
from fedkin.learning.models.nets import Model
from fedkin.settings import choose, parse

_CLASSES: tuple[type[Model], ...] = (
    nets.Linear, nets.Mlp, nets.CnnMnist, nets.CnnCifar, nets.CnnFedAvg, nets.Mlp3, nets.Mlp8, nets.TextMean, nets.UNet,
    nets.LeNet, nets.LeafCnn, nets.SmallPlain, nets.SmallResidual, nets.SmallSeparable, nets.SmallWide, vision.ResNet18,
    vision.ResNet50, vision.ShuffleNetV2, vision.GoogLeNet, vision.AlexNet,
)  # fmt: skip
# By name; `fedkin.running.plugins` adds those of files and packages.
MODELS: dict[str, type[Model]] = {model.model_fields["name"].default: model for model in _CLASSES}


class Mixed(Model):
    """Clients get the bodies in turn, in the alphabetical order of their ids; all heads have the same shape.

    bodies: names of nets, or names in `nets`. nets: tables with the settings of a net and its `name`, each under a name
    of your own. width: width of every body's features; no table in `nets` may set it.
    """

    name: Literal["mixed"] = "mixed"
    bodies: tuple[str, ...] = Field(("small-plain", "small-residual", "small-separable", "small-wide"), min_length=1)
    width: int = Field(64, ge=1)
    nets: dict[str, dict[str, Any]] = Field({})

    @field_validator("nets")
    @classmethod
    def _complete(cls, tables: dict[str, dict[str, Any]], info: ValidationInfo) -> dict[str, dict[str, Any]]:
        """Fill in settings that a net computes by itself, such as the hash of its files."""
        complete = {}
        for body, table in tables.items():
            location = f"model.nets.{body}"
            try:
                net = parse(choose(MODELS, table.get("name"), f"{location}.name"), table, location)
            except ConfigError as error:
                raise ValueError(str(error)) from None
            field = _width_field(type(net))
            if field in table:
                width = info.data.get("width")
                raise ValueError(f"nets.{body}.{field}: mixed sets it to `width` ({width}); leave it out")
            complete[body] = net.model_dump(mode="json", exclude_none=True, exclude={field} if field else set())
        return complete

    @model_validator(mode="after")
    def _check(self) -> Self:
        for body in self.bodies:
            self.sized(body)
        for name in self.nets:
            if name not in self.bodies:
                raise ValueError(f"nets: {name!r} is in no bodies; {nearest(name, self.bodies)}")
        return self

    def deal_bodies(self, ids: Iterable[str]) -> dict[str, Model]:
        """Return the net of every client."""
        models = [self.sized(body) for body in self.bodies]
        return {id: models[index % len(models)] for index, id in enumerate(sorted(ids))}

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        """Return (body, head) of the first of `bodies`."""
        return self.sized(self.bodies[0]).build(task)

    def sized(self, body: str) -> Model:
        """Return one of `bodies` with features of this width; raises ValueError for a net without such a setting."""
        table: Mapping[str, Any] = self.nets.get(body, {"name": body})
        name = table["name"]
        with_width = [known for known, model in MODELS.items() if model is not Mixed and _width_field(model)]
        if name not in with_width:
            raise ValueError(f"bodies: no net {name!r} with a width that can be set; {nearest(name, with_width)}")
        field = _width_field(MODELS[name])
        return MODELS[name].model_validate({**table, field: (self.width,) if field == "hidden" else self.width})


def _width_field(model: type[Model]) -> str | None:
    """Return the name of the setting for the width of the features, if there is one."""
    return next((field for field in ("width", "features", "hidden") if field in model.model_fields), None)


MODELS["mixed"] = Mixed
