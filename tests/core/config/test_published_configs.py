"""The published drafters are read as what they are."""

import pytest

from dflash2_core.config import DrafterConfig
from dflash2_core.config.shapes import optional_tensor_shapes, tensor_shapes
from tests.core.config.published import FIRST_VERSION, MUSE_30B, QWEN_27B, TOY, changed


def test_the_27b_drafter_has_its_81_tensors_and_their_parameters() -> None:
    config = DrafterConfig.from_dict(QWEN_27B)
    assert len(tensor_shapes(config)) == 81
    assert config.num_parameters == 1_924_404_480


def test_the_30b_drafter_has_its_parameters() -> None:
    config = DrafterConfig.from_dict(MUSE_30B)
    assert len(tensor_shapes(config)) == 81
    assert config.num_parameters == 2_772_159_744


def test_every_field_of_the_27b_drafter_is_what_its_file_says() -> None:
    config = DrafterConfig.from_dict(QWEN_27B)
    assert (config.version, config.block_size, config.num_drafts) == (2, 8, 7)
    assert config.target_layer_ids == (5, 19, 33, 47, 61)
    assert (config.num_target_layers, config.target_hidden_size, config.hidden_size) == (64, 5120, 5120)
    assert (config.conv_kernel_size, config.conv_group_size) == (2, 16)
    assert (config.selector_rank, config.selector_top_k) == (256, 16)
    assert config.layer_windows == (2048,) * 5
    assert config.layer_causal == (False,) * 5
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 1e7}
    assert config.rope_theta == 1e7
    assert (config.mask_token_id, config.eos_token_ids, config.pad_token_id) == (248070, (248044,), 248044)
    assert (config.input_embedding_scale, config.output_multiplier, config.final_logit_softcapping) == (1.0, 1.0, None)


def test_scale_and_soft_cap_of_the_30b_drafter_are_read() -> None:
    config = DrafterConfig.from_dict(MUSE_30B)
    assert config.output_multiplier == 0.19611613513818404
    assert config.final_logit_softcapping == 20.0
    assert config.num_drafts == 15


@pytest.mark.parametrize("mapping", [QWEN_27B, MUSE_30B, TOY, FIRST_VERSION], ids=["27b", "30b", "toy", "first"])
def test_what_is_written_reads_as_the_same_drafter(mapping: dict[str, object]) -> None:
    config = DrafterConfig.from_dict(mapping)
    assert DrafterConfig.from_dict(config.to_dict()) == config


def test_the_first_version_has_no_convolution_and_no_selector() -> None:
    config = DrafterConfig.from_dict(FIRST_VERSION)
    assert config.version == 1
    assert not [name for name in tensor_shapes(config) if "conv" in name or "selector" in name]


def test_a_target_of_another_width_widens_fc_only() -> None:
    narrow, wide = DrafterConfig.from_dict(TOY), DrafterConfig.from_dict(changed(TOY, target_hidden_size=40))
    differing = {name for name, shape in tensor_shapes(wide).items() if tensor_shapes(narrow)[name] != shape}
    assert differing == {"fc.weight"}
    assert tensor_shapes(wide)["fc.weight"] == (16, 3 * 40)


def test_what_a_checkpoint_may_hold_of_its_own_is_embedding_head_and_mask_row() -> None:
    assert optional_tensor_shapes(DrafterConfig.from_dict(TOY)) == {
        "embed_tokens.weight": (37, 16),
        "lm_head.weight": (37, 16),
        "mask_embedding": (16,),
    }


def test_a_config_cannot_be_changed() -> None:
    config = DrafterConfig.from_dict(TOY)
    with pytest.raises(AttributeError):
        config.block_size = 4  # type: ignore[misc]
