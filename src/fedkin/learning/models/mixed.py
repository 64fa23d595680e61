"""Different bodies in one federation: each client gets one of several named nets, all with one feature width."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from torch import nn

from fedkin.errors import ConfigError, nearest
from fedkin.federation import Task
from fedkin.keys import rng
from fedkin.learning.models.base import Model
from fedkin.learning.models.named import NAMED
from fedkin.settings import choose, parse

__all__ = ["Mixed"]


class Mixed(Model):
    """Clients with different bodies, and heads of one shape.

    bodies: names of nets, or of `nets`: the settings of a net, with its `name`, by a name of your own. deal:
    "round-robin" over the ids in alphabetical order, "random" (a draw per client, keyed by seed and id), or {client id:
    name} for all clients. If groups alternate along the ids, "round-robin" makes bodies depend on groups; "random" does
    not. width: width of every body's features, which no table in `nets` sets.
    """

    name: Literal["mixed"] = "mixed"
    bodies: tuple[str, ...] = Field(("small-plain", "small-residual", "small-separable", "small-wide"), min_length=1)
    deal: Literal["round-robin", "random"] | dict[str, str] = "round-robin"
    width: int = Field(64, ge=1)
    nets: dict[str, dict[str, Any]] = Field({})

    @field_validator("nets")
    @classmethod
    def _whole(cls, nets: dict[str, dict[str, Any]], about: ValidationInfo) -> dict[str, dict[str, Any]]:
        """Fill in what a net finds out about itself, such as the hash of its files."""
        made = {}
        for own, table in nets.items():
            try:
                net = parse(choose(NAMED, table.get("name"), f"model.nets.{own}.name"), table, f"model.nets.{own}")
            except ConfigError as error:
                raise ValueError(str(error)) from None
            field = _width_field(type(net))
            if field in table:
                width = about.data.get("width")
                raise ValueError(f"nets.{own}.{field}: mixed sets it to `width` ({width}); leave it out")
            made[own] = net.model_dump(mode="json", exclude_none=True, exclude={field} if field else set())
        return made

    @model_validator(mode="after")
    def _check(self) -> Self:
        for body in self.bodies:
            self.sized(body)
        for own in self.nets:
            if own not in self.bodies:
                raise ValueError(f"nets: {own!r} is in no bodies; {nearest(own, self.bodies)}")
        for id, body in self.deal.items() if isinstance(self.deal, dict) else ():
            if body not in self.bodies:
                raise ValueError(f"deal: client {id!r} is given {body!r}; {nearest(body, self.bodies)}")
        return self

    def deal_bodies(self, ids: Iterable[str], seed: int) -> dict[str, Model]:
        """Return the net of every client; raises ConfigError if `deal` names other clients than these."""
        ordered = sorted(ids)
        if isinstance(self.deal, dict):
            unlike = sorted(set(ordered) ^ set(self.deal))
            if unlike:
                what = "has no body" if unlike[0] in ordered else "is not in the federation"
                raise ConfigError(
                    f"model.deal: client {unlike[0]!r} {what}; name a body for every client, and no other"
                )
            names = self.deal
        elif self.deal == "random":
            names = {id: self.bodies[rng(seed, id, "body").integers(len(self.bodies))] for id in ordered}
        else:
            names = {id: self.bodies[place % len(self.bodies)] for place, id in enumerate(ordered)}
        made = {body: self.sized(body) for body in self.bodies}
        return {id: made[names[id]] for id in ordered}

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        """Return (body, head) of the first of `bodies`."""
        return self.sized(self.bodies[0]).build(task)

    def sized(self, body: str) -> Model:
        """Return one of `bodies` with features of this width; raises ValueError."""
        table = self.nets.get(body)
        return sized(body, self.width) if table is None else sized(table["name"], self.width, table)


def sized(name: str, width: int, settings: Mapping[str, Any] | None = None) -> Model:
    """Return the named net with features of this width; raises ValueError for a net without such a setting."""
    wide = {known: field for known, model in NAMED.items() if (field := _width_field(model))}
    if name not in wide:
        raise ValueError(f"bodies: no net {name!r} with a width that can be set; {nearest(name, wide)}")
    field = wide[name]
    return NAMED[name].model_validate({**(settings or {}), field: (width,) if field == "hidden" else width})


def _width_field(model: type[Model]) -> str | None:
    """Return the name of the setting for the width of the features, if there is one."""
    return next((field for field in ("width", "features", "hidden") if field in model.model_fields), None)
