"""Settings: frozen pydantic models that refuse unknown names, with errors a person can act on."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import get_annotations
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from fedkin.errors import ConfigError, DataError, FedkinError, WrongSetting, nearest
from fedkin.untrusted import error_text, escaped

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

__all__ = [
    "Settings", "Span", "choose", "differing", "errors_in", "expect", "flat", "one_of", "parse", "place", "span",
    "tunables",
]  # fmt: skip


class _SettingsMeta(ModelMetaclass):
    """Raise WrongSetting with fedkin's text for invalid settings made in Python; pydantic itself skips this call."""

    if not TYPE_CHECKING:

        def __call__(cls, *args: Any, **table: Any) -> Any:
            try:
                return super().__call__(*args, **table)
            except ValidationError as error:
                raise WrongSetting(*_explained(cls, error, cls.__name__, table)) from None


class Settings(BaseModel, metaclass=_SettingsMeta):
    """Base of every group of settings: frozen, compared by value; unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_booleans_for_numbers(cls, table: Any) -> Any:
        """Refuse true and false for settings that are not booleans: pydantic reads true as 1."""
        for name, value in table.items() if isinstance(table, Mapping) else ():
            field = cls.model_fields.get(name)
            if isinstance(value, bool) and field is not None and "bool" not in str(field.annotation):
                raise ValueError(f"{name}: expected no true or false, got {value}")
        return table


class Span(NamedTuple):
    """The range in which a setting is tuned; log: on a logarithmic scale."""

    low: float
    high: float
    log: bool = True

    def at(self, share: float) -> float:
        """Return the value at this share of the range, 0 to 1, with three digits.

        >>> Span(0.01, 1).at(0.5), Span(0, 1, log=False).at(0.25)
        (0.1, 0.25)
        """
        if self.log:
            return float(f"{self.low * (self.high / self.low) ** share:.3g}")
        return float(f"{self.low + (self.high - self.low) * share:.3g}")


def span(low: float, high: float, log: bool = True) -> Any:
    """Mark a field as tuned in this range: `mu: float = Field(0.01, json_schema_extra=span(0.001, 1))`."""
    return {"tune": Span(low, high, log)}


def one_of(*values: Any) -> Any:
    """Mark a field as tuned among these values."""
    return {"tune": values}


def tunables(model: type[BaseModel], prefix: str) -> dict[str, Span | tuple[Any, ...]]:
    """Return the range or values of each tuned setting of a group and its inner groups, by path.

    >>> from pydantic import Field
    >>> class Prox(Settings):
    ...     mu: float = Field(0.01, json_schema_extra=span(0.001, 1))
    >>> tunables(Prox, "method")
    {'method.mu': Span(low=0.001, high=1, log=True)}
    """
    found: dict[str, Span | tuple[Any, ...]] = {}
    for name, field in model.model_fields.items():
        extra, inner = field.json_schema_extra, _inner(model, name)
        if isinstance(extra, dict) and "tune" in extra:
            found[f"{prefix}.{name}"] = extra["tune"]  # type: ignore[assignment]
        elif inner is not None:
            found |= tunables(inner, f"{prefix}.{name}")
    return found


S = TypeVar("S", bound=Settings)
T = TypeVar("T")


def parse(model: type[S], table: Mapping[str, Any], where: str) -> S:
    """Check `table` and return it as a `model`; raises ConfigError naming every bad field as `where.field`.

    >>> class Local(Settings):
    ...     lr: float = 0.1
    >>> parse(Local, {"lr": 0.2}, "training").lr
    0.2
    >>> parse(Local, {"lrr": 0.2}, "training")
    Traceback (most recent call last):
    fedkin.errors.ConfigError: training.lrr: no such setting; did you mean 'lr'?
    """
    expect(table, Mapping, where, f"a {model.__name__} or its fields as a dict")
    try:
        return model.model_validate(dict(table))
    except ValidationError as error:
        raise ConfigError(*_explained(model, error, where, table)) from None


def expect(value: object, kinds: type | tuple[type, ...], where: str, what: str) -> None:
    """Raise ConfigError unless an argument has one of these types.

    >>> expect(3, (str, Path), "out", "a path")
    Traceback (most recent call last):
    fedkin.errors.ConfigError: out: expected a path, got 3
    """
    if not isinstance(value, kinds):
        raise ConfigError(f"{where}: expected {what}, got {escaped(repr(value), 80)}")


def place(value: Path | str, where: str) -> Path:
    """Return an argument as a path; raises ConfigError unless it is a text or a path."""
    expect(value, (str, PathLike), where, "a path")
    return Path(value)


def choose(registry: Mapping[str, T], name: object, where: str) -> T:
    """The entry of `registry` under `name`; raises ConfigError with the nearest known name."""
    if not isinstance(name, str) or name not in registry:
        raise ConfigError(f"{where}: no {name!r}; {nearest(str(name), registry)}")
    return registry[name]


@contextmanager
def errors_in(part: Settings) -> Iterator[None]:
    """Raise DataError with file and line for an error in the user's own file that defines this part.

    A part of fedkin's own is not blamed: an error there is a fault of fedkin.
    """
    try:
        yield
    except (FedkinError, MemoryError):
        raise
    except Exception as error:
        file = getattr(sys.modules.get(type(part).__module__), "__file__", None) or ""
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        if not lines or Path(__file__).parent in Path(file).parents:
            raise
        raise DataError(f"{file}, line {lines[-1]}: {type(error).__name__}: {error_text(error)}") from error


def _explained(model: type[BaseModel], error: ValidationError, where: str, table: Mapping[str, Any]) -> list[str]:
    items = error.errors()
    # pydantic calls a list with a wrong value also too short.
    inside = {item["loc"][:-1] for item in items}
    items = [item for item in items if item["type"] != "too_short" or item["loc"] not in inside]
    return [_explain(model, item, where, table) for item in items]


def _explain(model: type[BaseModel], item: Any, where: str, table: Mapping[str, Any]) -> str:
    """One validation error as `section.field: what was wrong, what was expected`; where: the table's section."""
    location = [str(part) for part in item["loc"]]
    name = _dotted([where, *location])
    if item["type"] == "extra_forbidden":
        return f"{name}: no such setting; {nearest(location[-1], _fields(model, location[:-1]))}"
    if item["type"] == "missing":
        return f"{name}: missing, and it has no default"
    name = _default(model, location, table) or name
    message = item["msg"].removeprefix("Value error, ")
    if message == item["msg"]:
        message = message[:1].lower() + message[1:]
    given = item.get("input")
    if item["type"] == "tuple_type":
        message = f"expected a list, such as [{escaped(repr(given), 40)}]"
    elif item["type"] == "too_short":
        message = f"expected a list of length {item['ctx']['min_length']} or more"
    got = "" if isinstance(given, Mapping) or "; got " in message else f"; got {escaped(repr(given), 200)}"
    return f"{name}: {message}{got}"


def _default(model: type[BaseModel], location: list[str], table: Any) -> str | None:
    """Name the class whose default the wrong value is; None if the value is in the table."""
    for place, part in enumerate(location):
        if not isinstance(table, Mapping) or part not in model.model_fields:
            return None
        if part not in table:
            kind = next(kind for kind in model.__mro__ if part in get_annotations(kind))
            file = getattr(sys.modules.get(kind.__module__), "__file__", None)
            name = _dotted(location[place:])
            return f"{f'{file}: ' if file else ''}class {kind.__name__}: the default of {name!r}"
        inner = _inner(model, part)
        if inner is None:
            return None
        table, model = table[part], inner
    return None


def _dotted(parts: list[str]) -> str:
    return ".".join(part for part in parts if part)


def _fields(model: type[BaseModel], path: list[str]) -> list[str]:
    """Names of the fields of the (nested) model at `path`."""
    for part in path:
        inner = _inner(model, part)
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def _inner(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The settings class of the field `name`; None if the field is no group of settings."""
    field = model.model_fields.get(name)
    kind = None if field is None else field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a nested table to names such as `a.b`, at any depth; None values are left out.

    >>> flat({"round": 3, "bytes": {"up": 8, "down": 9}, "groups": {"ari": None}})
    {'round': 3, 'bytes.up': 8, 'bytes.down': 9}
    """
    values: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            values |= flat(value, f"{prefix}{name}.")
        elif value is not None:
            values[prefix + name] = value
    return values


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return the values in which two nested tables differ, each as (name, value in one, value in other), by name.

    >>> differing({"run": {"seed": 1, "dtype": "float32"}}, {"run": {"seed": 2}, "name": "b"})
    [('name', 'not set', 'b'), ('run.dtype', 'float32', 'not set'), ('run.seed', 1, 2)]
    """
    first, second = flat(one), flat(other)
    names = sorted(name for name in {**first, **second} if first.get(name) != second.get(name))
    return [(name, first.get(name, "not set"), second.get(name, "not set")) for name in names]
