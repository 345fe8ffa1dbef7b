import pytest
import torch

from dflash2_core import SamplingParams
from dflash2_core.drafter import Drafter
from dflash2_core.errors import ConfigError
from dflash2_core.training.documents import Document, collate
from dflash2_core.training.features import FeatureSource
from dflash2_core.training.loop import losses_of
from dflash2_core.training.losses import Objective
from dflash2_core.training.optimizers import make_optimizers
from dflash2_core.training.shape import Shape, config_for
from dflash2_core.training.start import Part, copy_from_target, freeze, new_drafter
from dflash2_core.transformers_engine import Target, TransformersEngine
from tests.core.toys import MASK, drafter_config


def without_its_second_version(drafter: Drafter) -> Drafter:
    """The DFlash 1 drafter with the other weights of a DFlash 2 one."""
    first = Drafter(drafter_config(version=1))
    weights = drafter.state_dict()
    first.load_state_dict({name: weights[name] for name in first.state_dict()})
    return first


def test_a_new_drafter_is_exactly_the_dflash_1_of_its_other_weights(target: Target, documents: list[Document]) -> None:
    second = new_drafter(drafter_config(), seed=3)
    prompts = [document.tokens[: document.prompt_length] for document in documents]
    params = SamplingParams(max_new_tokens=12)
    statistics = {
        drafter.config.version: [
            completion.stats.to_dict() for completion in TransformersEngine(target, drafter.eval()).generate(prompts, params)
        ]
        for drafter in (second, without_its_second_version(second))
    }
    assert statistics[1] == statistics[2]


def test_the_same_seed_gives_the_same_drafter() -> None:
    first, again, other = (new_drafter(drafter_config(), seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["fc.weight"], other["fc.weight"])


def test_copied_layers_read_the_context_as_the_targets_own_layer_does(target: Target) -> None:
    shape = Shape(mask_token_id=MASK, conv_group_size=4, selector_top_k=5)
    drafter = new_drafter(config_for(target, shape), seed=0)
    copy_from_target(drafter, target)
    taps = FeatureSource(target, drafter.config.target_layer_ids).of([Document([3, 1, 4, 1, 5, 9], 1)]).taps
    last = target.layers[-1]
    theirs = last.self_attn.v_proj(last.input_layernorm(taps[..., -target.hidden_size :]))
    ours = drafter.layers[-1].self_attn.v_proj(drafter.encode_taps(taps))
    torch.testing.assert_close(ours, theirs)


def test_layers_of_another_size_are_not_copied(target: Target) -> None:
    with pytest.raises(ConfigError, match="cannot begin with the target's layers"):
        copy_from_target(new_drafter(drafter_config(head_dim=4), seed=0), target)


@pytest.mark.parametrize("part", ["selector", "convolution"])
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_frozen_part_stays_as_it_began_and_the_rest_moves(
    target: Target, documents: list[Document], part: Part, kind: str
) -> None:
    drafter = new_drafter(drafter_config(), seed=0)
    before = {name: tensor.clone() for name, tensor in drafter.state_dict().items()}
    freeze(drafter, [part])
    optimizers = make_optimizers(drafter, kind, 0.01)  # type: ignore[arg-type]
    batch = collate(documents[:4])
    features = FeatureSource(target, drafter.config.target_layer_ids).of(documents[:4])
    anchors = batch.prompt_lengths[:, None] + torch.arange(4)
    for _ in range(3):  # the kernels of a convolution and the selector's first factors wait for their partners to leave zero
        losses_of(drafter, target, batch, features, anchors, Objective())["total"].backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    moved = {name for name, tensor in drafter.state_dict().items() if not torch.equal(tensor, before[name])}
    frozen = {name for name in before if ("selector" if part == "selector" else "_conv.") in name}
    assert moved == set(before) - frozen
