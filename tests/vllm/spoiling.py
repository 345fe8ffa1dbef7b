"""Checkpoints whose config.json says something else, in the words of a table of cases."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from tests.engines import spoiling
from tests.engines.spoiling import set_key


def spoilt(source: Path, folder: Path, *, tensors: Callable[[dict[str, Tensor]], None] | None = None, **keys: Any) -> Path:
    """The checkpoint `source` in `folder`. keys: of config.json; `dflash_config` is merged; None takes a key out."""
    inner = keys.pop("dflash_config", None) or {}
    places = [(("dflash_config", name), value) for name, value in inner.items()]
    places += [((name,), value) for name, value in keys.items()]

    def change(document: dict[str, Any]) -> None:
        for place, value in places:
            set_key(*place, to=value)(document)

    return spoiling.spoilt(folder, source=source, config=change, tensors=tensors)
