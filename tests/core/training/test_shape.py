import pytest

from dflash2_core.errors import ConfigError
from dflash2_core.training.shape import Shape, config_for, spread_taps
from dflash2_core.transformers_engine import Target
from tests.core.toys import MASK


@pytest.mark.parametrize("num_layers", range(2, 80))
def test_taps_are_distinct_and_leave_the_last_layer_out(num_layers: int) -> None:
    taps = spread_taps(num_layers)
    assert len(set(taps)) == len(taps) == min(5, num_layers - 1)
    assert taps[0] == 0
    assert max(taps) <= num_layers - 2


def test_what_is_not_chosen_is_the_targets(target: Target) -> None:
    config = config_for(target, Shape(mask_token_id=MASK, conv_group_size=4, window=9, selector_top_k=5))
    assert (config.hidden_size, config.vocab_size, config.num_target_layers) == (16, 37, 6)
    assert config.layer_windows == (9, 9)
    assert config.layer_causal == (False, False)


def test_a_first_version_has_no_convolution_and_no_selector(target: Target) -> None:
    config = config_for(target, Shape(version=1, mask_token_id=MASK))
    assert config.version == 1
    assert config.conv_kernel_size is config.selector_rank is None


def test_without_a_mask_token_the_way_to_name_one_is_said(target: Target) -> None:
    with pytest.raises(ConfigError, match="no mask token"):
        config_for(target, Shape())
