"""speculators 0.9: the same drafter in other words, read and written."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given

from dflash2_core.config import DrafterConfig, speculators
from dflash2_core.errors import ConfigError
from tests.core.config.published import FIRST_VERSION, TOY, changed
from tests.core.config.strategies import configs

# As the package itself saved it (save_pretrained of a DFlash2DraftModel, speculators 0.9.0), sizes of the toy.
SAVED_BY_THE_PACKAGE: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    "auto_map": {"": "config.DFlash2SpeculatorConfig"},
    "aux_hidden_state_layer_ids": [1, 3, 5],
    "block_size": 8,
    "conv_group_size": 4,
    "conv_kernel_size": 2,
    "draft_vocab_size": 37,
    "dtype": "bfloat16",
    "mask_token_id": 36,
    "sample_from_anchor": False,
    "selector_rank": 7,
    "selector_top_k": 5,
    "sliding_window_non_causal": True,
    "speculators_config": {
        "algorithm": "dflash2",
        "default_proposal_method": "greedy",
        "proposal_methods": [
            {"accept_tolerance": 0.0, "proposal_type": "greedy", "speculative_tokens": 7, "verifier_accept_k": 1}
        ],
        "verifier": {"architectures": ["Qwen3ForCausalLM"], "name_or_path": "somewhere/target"},
    },
    "speculators_model_type": "dflash2",
    "speculators_version": "0.9.0",
    "target_hidden_size": None,
    "tie_word_embeddings": False,
    "transformer_layer_config": {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": 35,
        "head_dim": 8,
        "hidden_act": "silu",
        "hidden_size": 16,
        "initializer_range": 0.02,
        "intermediate_size": 24,
        "layer_types": ["sliding_attention", "sliding_attention"],
        "max_position_embeddings": 4096,
        "max_window_layers": 2,
        "model_type": "qwen3",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "pad_token_id": 34,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 10000000.0, "rope_type": "default"},
        "sliding_window": 4,
        "tie_word_embeddings": False,
        "transformers_version": "5.19.0",
        "use_cache": True,
        "use_sliding_window": True,
        "vocab_size": 37,
    },
    "transformers_version": "5.19.0",
}


def layer(**changes: Any) -> dict[str, Any]:
    return changed(SAVED_BY_THE_PACKAGE["transformer_layer_config"], **changes)


def saved(**changes: Any) -> dict[str, Any]:
    return changed(SAVED_BY_THE_PACKAGE, **changes)


def test_a_file_saved_by_the_package_is_the_same_drafter_as_the_zlab_one() -> None:
    expected = DrafterConfig.from_dict(changed(TOY, num_target_layers=None))
    assert DrafterConfig.from_dict(SAVED_BY_THE_PACKAGE) == expected


def test_every_key_the_package_writes_is_written_but_its_bookkeeping() -> None:
    written = DrafterConfig.from_dict(TOY).to_dict("speculators")
    bookkeeping = {"auto_map", "dtype", "tie_word_embeddings", "transformers_version"}
    assert set(SAVED_BY_THE_PACKAGE) - set(written) == bookkeeping
    assert set(written) - set(SAVED_BY_THE_PACKAGE) == {"num_target_layers"}
    for key in ("aux_hidden_state_layer_ids", "speculators_model_type", "architectures", "sliding_window_non_causal"):
        assert written[key] == SAVED_BY_THE_PACKAGE[key]
    for key, value in written["transformer_layer_config"].items():
        assert value == SAVED_BY_THE_PACKAGE["transformer_layer_config"][key]


@given(configs())
def test_a_visit_to_this_layout_changes_nothing(config: DrafterConfig) -> None:
    written = None
    with suppress(ConfigError):  # what this layout has no words for it refuses: see below
        written = config.to_dict("speculators")
    if written is not None:
        there = DrafterConfig.from_dict(written)
        assert there == config
        assert DrafterConfig.from_dict(there.to_dict("zlab")) == config


def test_taps_are_stored_as_inputs_of_the_next_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """T-TAP, in the file. The mutant writes outputs where the layout has inputs."""

    def survive() -> bool:
        config = DrafterConfig.from_dict(changed(TOY, dflash_config={"target_layer_ids": [1, 2, 4]}))
        return DrafterConfig.from_dict(config.to_dict("speculators")).target_layer_ids == (1, 2, 4)

    assert survive()
    write = speculators.write
    unshifted = lambda config: write(config) | {"aux_hidden_state_layer_ids": list(config.target_layer_ids)}  # noqa: E731
    monkeypatch.setattr(speculators, "write", unshifted)
    assert not survive()


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [([0, 2], "embeddings"), ([1, 6], "last layer"), ([1, 1], "twice"), ([7], "the target has 6 layers"), (None, "is missing")],
)
def test_taps_that_cannot_be_meant_are_refused(inputs: list[int] | None, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        DrafterConfig.from_dict(saved(aux_hidden_state_layer_ids=inputs, num_target_layers=6))


def stated(**changes: Any) -> dict[str, Any]:
    return changed(SAVED_BY_THE_PACKAGE["speculators_config"], **changes)


def proposing(tokens: object) -> list[dict[str, object]]:
    return [{"proposal_type": "greedy", "speculative_tokens": tokens}]


def first_version(**changes: Any) -> dict[str, Any]:
    absent = dict.fromkeys(("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"))
    named = {
        "speculators_model_type": "dflash",
        "architectures": ["DFlashSpeculator"],
        "speculators_config": stated(algorithm="dflash"),
    }
    return changed(SAVED_BY_THE_PACKAGE, **(absent | named | changes))


def test_the_default_of_the_causal_flag_differs_by_version() -> None:
    assert DrafterConfig.from_dict(saved(sliding_window_non_causal=None)).layer_causal == (False, False)
    assert DrafterConfig.from_dict(first_version(sliding_window_non_causal=None)).layer_causal == (True, True)
    assert DrafterConfig.from_dict(first_version()).layer_causal == (False, False)


def test_a_full_layer_is_never_causal_here() -> None:
    mixed = layer(layer_types=["sliding_attention", "full_attention"])
    config = DrafterConfig.from_dict(saved(transformer_layer_config=mixed, sliding_window_non_causal=False))
    assert (config.layer_windows, config.layer_causal) == ((4, None), (True, False))


def test_layers_called_sliding_without_their_window_are_refused_where_stacks_disagree() -> None:
    lifted = layer(use_sliding_window=False)
    assert DrafterConfig.from_dict(saved(transformer_layer_config=lifted)).layer_windows == (None, None)
    with pytest.raises(ConfigError, match="stacks disagree"):
        DrafterConfig.from_dict(saved(transformer_layer_config=lifted, sliding_window_non_causal=False))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"draft_vocab_size": 16}, "reduced vocabulary"),
        ({"sample_from_anchor": True}, "sample_from_anchor"),
        ({"auto_map": {"AutoModel": "model.Drafter"}}, "auto_map"),
        ({"auto_map": {"": "config.DFlash2SpeculatorConfig", "AutoModel": "x.Y"}}, "auto_map"),
        ({"output_multiplier": "half"}, "output_multiplier"),
        ({"transformer_layer_config": layer(output_multiplier=0.5)}, "transformer_layer_config.output_multiplier"),
        ({"surprise": 1}, "surprise"),
        ({"transformer_layer_config": layer(surprise=1)}, "transformer_layer_config.surprise"),
        ({"transformer_layer_config": layer(attention_bias=True)}, "attention_bias"),
        ({"transformer_layer_config": None}, "transformer_layer_config is missing"),
        ({"transformer_layer_config": [1]}, "transformer_layer_config"),
        ({"block_size": None}, "block_size is missing"),
        ({"mask_token_id": None}, "mask_token_id is missing"),
        ({"selector_rank": None}, "selector_rank missing"),
        ({"conv_kernel_size": None}, "conv_kernel_size missing"),
        ({"architectures": ["DFlashDraftModel"]}, "architectures"),
        ({"speculators_model_type": "dflash"}, "architectures"),
        ({"speculators_model_type": "eagle3"}, "speculator of type 'eagle3'"),
        ({"speculators_model_type": 2}, "speculators_model_type"),
        ({"eos_token_id": 33}, "transformer_layer_config.eos_token_id is .* but eos_token_id is"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"speculators_config": "nonsense"}, "speculators_config: expected an object, found 'nonsense'"),
        ({"speculators_config": stated(algorithm="eagle3")}, "speculators_config.algorithm is 'eagle3' but .* is dflash2"),
        ({"speculators_config": stated(algorithm="dflash")}, "speculators_config.algorithm is 'dflash' but .* is dflash2"),
        ({"speculators_config": stated(algorithm=3)}, "speculators_config.algorithm: expected a string, found 3"),
        (
            {"speculators_config": stated(proposal_methods=proposing(3))},
            "3 speculative_tokens but block_size is 8, .* drafts 7",
        ),
        (
            {"speculators_config": stated(proposal_methods=proposing(9))},
            "9 speculative_tokens but block_size is 8, .* drafts 7",
        ),
        ({"speculators_config": stated(proposal_methods=proposing("7"))}, "speculators_config.proposal_methods: .*found '7'"),
        ({"speculators_config": stated(proposal_methods="greedy")}, "speculators_config.proposal_methods: expected a list"),
        (
            {"speculators_config": stated(proposal_methods=["greedy"])},
            "speculators_config.proposal_methods: expected an object",
        ),
        ({"speculators_config": stated(verifier="somewhere")}, "speculators_config.verifier: expected an object"),
        ({"speculators_config": stated(surprise=1)}, "speculators_config.surprise is a key this project does not know"),
    ],
)
def test_what_would_be_another_drafter_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        DrafterConfig.from_dict(saved(**changes))


def test_the_first_version_may_not_carry_parts_of_the_second() -> None:
    with pytest.raises(ConfigError, match="declared as DFlash 1"):
        DrafterConfig.from_dict(first_version(selector_rank=7))


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ({"output_multiplier": 0.5}, 0.5),
        ({"input_embedding_scale": 2.0}, 2.0),
        ({"final_logit_softcapping": 30.0}, 30.0),
        ({"final_logit_softcapping": 0.0}, None),
    ],
)
def test_scales_that_a_file_says_all_the_same_are_kept(said: dict[str, float], kept: float | None) -> None:
    assert getattr(DrafterConfig.from_dict(saved(**said)), next(iter(said))) == kept


@pytest.mark.parametrize(
    "own",
    [{"output_multiplier": 0.5}, {"input_embedding_scale": 2.0}, {"final_logit_softcapping": 30.0}],
    ids=lambda own: next(iter(own)),
)
def test_what_this_layout_would_lose_is_not_written(own: dict[str, float]) -> None:
    config = DrafterConfig.from_dict(changed(TOY, dflash_config=own))
    with pytest.raises(ConfigError, match=next(iter(own))):
        config.to_dict("speculators")


def test_an_unknown_layout_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="layout is 'gguf': expected one of zlab, speculators"):
        DrafterConfig.from_dict(FIRST_VERSION).to_dict("gguf")


def test_what_the_package_states_of_its_algorithm_may_be_missing_or_count_the_blocks_rows() -> None:
    """Older releases of the package wrote block_size itself as speculative_tokens."""
    expected = DrafterConfig.from_dict(SAVED_BY_THE_PACKAGE)
    rows = stated(proposal_methods=proposing(8))
    for section in (None, {}, stated(proposal_methods=[]), stated(proposal_methods=proposing(None)), rows):
        assert DrafterConfig.from_dict(saved(speculators_config=section)) == expected


def test_the_verifiers_name_is_not_kept_and_none_is_invented() -> None:
    written = DrafterConfig.from_dict(SAVED_BY_THE_PACKAGE).to_dict("speculators")
    assert written["speculators_config"]["verifier"] == {"name_or_path": None, "architectures": []}
