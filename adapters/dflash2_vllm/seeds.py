"""Which random draws a row's drafts come from."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def seeds_of(requests: Mapping[str, Any], ids: Sequence[str]) -> list[int]:
    """The seed of each row: the request's own, so that its drafts depend on nothing else; without one, a new one each time.

    requests  vLLM's, by id, each with its sampling_params
    """
    own = [getattr(requests[request].sampling_params, "seed", None) for request in ids]
    fresh = torch.randint(-(2**63), 2**63 - 1, (len(own),)).tolist()
    return [made if seed is None else seed for seed, made in zip(own, fresh, strict=True)]
