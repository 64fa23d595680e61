"""The packages of nets that are an extra: transformers, peft and timm."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

from fedkin.errors import ConfigError
from fedkin.learning.models.vision import torchvision_models
from fedkin.untrusted import said

__all__ = ["library"]


@cache
def library(name: str) -> Any:
    """Return the package transformers, peft or timm; raises ConfigError if it cannot be imported."""
    # They import torchvision if it is there; after this, also one that is built for another torch can be imported.
    with suppress(ConfigError):
        torchvision_models()
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"model: {name} cannot be imported ({said(error)}): pip install 'fedkin[transformers]'"
        ) from None
