"""What is said of a pair: next to nothing of the embedded one, and of others what is wrong with each."""

from dataclasses import replace

import pytest

from dflash2_core.checkpoint.examination import Weights
from dflash2_core.compatibility import TargetFacts
from dflash2_core.diagnosis.chat import chat_findings
from dflash2_core.diagnosis.checkpoints import drafter_findings, target_findings
from dflash2_core.diagnosis.contexts import context_findings
from dflash2_core.diagnosis.dropped_keys import dropped_key_findings
from dflash2_core.diagnosis.dtypes import dtype_findings
from dflash2_core.diagnosis.facts import Tokenizer
from dflash2_core.diagnosis.fit import fit_findings
from dflash2_core.diagnosis.licences import licence_findings
from dflash2_core.diagnosis.tokenizers import tokenizer_findings
from tests.core.diagnosis.parts import drafter, drafter_with, engine, target, told


def test_the_embedded_pair_fits_in_every_respect() -> None:
    assert told(fit_findings(drafter(), target())) == {}
    assert told(tokenizer_findings(drafter(), target())) == {}
    assert told(context_findings(drafter(), target())) == {}
    assert told(dtype_findings(drafter(), target())) == {}
    assert told(chat_findings(drafter(), target())) == {}
    assert told(drafter_findings(drafter())) == {}
    assert told(target_findings(target())) == {}
    for name in ("vllm", "sglang", "llama-cpp"):
        assert told(dropped_key_findings(engine(name, route="native"), drafter())) == {}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 300}, "features of width 288, the target's are 300"),
        ({"vocab_size": 2000}, "its vocabulary has 1024 ids, the target's 2000"),
        ({"num_layers": 3}, "trained on a target of 4 layers, this one has 3"),
        ({"special_ids": {"padding": 2}}, "its mask token 2 is the target's padding token"),
    ],
)
def test_a_target_of_other_sizes_is_an_error(changes: dict[str, object], words: str) -> None:
    sizes = target().sizes
    assert sizes is not None
    other = replace(target(), sizes=replace(sizes, **changes))  # type: ignore[arg-type]
    found = told(fit_findings(drafter(), other))
    assert words in found["error"]
    assert "take the drafter that was made for this target" in found["error"]


def test_taps_that_cannot_be_checked_are_a_note() -> None:
    sizes = TargetFacts(hidden_size=16, vocab_size=37, num_layers=6)
    silent = drafter_with(num_target_layers=None)
    assert "whether layers 0, 2, 4 of 6 are those" in told(fit_findings(silent, replace(target(), sizes=sizes)))["note"]
    assert told(fit_findings(drafter_with(), replace(target(), sizes=sizes))) == {}


def tokenizer_of(pieces: str, merges: tuple[str, ...] | None = None) -> Tokenizer:
    return Tokenizer(tokens=dict(enumerate(pieces)), merges=merges)


def test_tokenizers_are_compared_by_content_and_not_by_size() -> None:
    theirs, permuted = replace(target(), tokenizer=tokenizer_of("abcd")), replace(drafter(), tokenizer=tokenizer_of("abdc"))
    found = told(tokenizer_findings(permuted, theirs))
    assert "2 of 4 ids are other pieces, first 2: 'd' to the drafter, 'c' to the target" in found["error"]
    assert told(tokenizer_findings(replace(permuted, tokenizer=tokenizer_of("abcd")), theirs)) == {}


def test_ids_of_padding_that_only_one_has_are_no_difference() -> None:
    longer = replace(drafter(), tokenizer=tokenizer_of("abcdXX"))
    assert told(tokenizer_findings(longer, replace(target(), tokenizer=tokenizer_of("abcd")))) == {}


def test_merges_in_another_order_make_another_tokenizer() -> None:
    theirs = replace(target(), tokenizer=tokenizer_of("ab", ("a b", "b a")))
    ours = replace(drafter(), tokenizer=tokenizer_of("ab", ("b a", "a b")))
    assert "the merges differ, first at 0" in told(tokenizer_findings(ours, theirs))["error"]
    assert told(tokenizer_findings(replace(ours, tokenizer=tokenizer_of("ab")), theirs)) == {}


def test_tokenizers_without_an_id_in_common_and_targets_without_one_are_told() -> None:
    ours = replace(drafter(), tokenizer=Tokenizer(tokens={9: "a"}))
    assert "no id in common" in told(tokenizer_findings(ours, replace(target(), tokenizer=tokenizer_of("ab"))))["error"]
    assert "cannot be told" in told(tokenizer_findings(ours, replace(target(), tokenizer=None)))["warning"]


def test_a_drafter_with_fewer_positions_than_its_target_drafts_nothing_behind_them() -> None:
    longer = replace(target(), context_length=4096)
    found = told(context_findings(drafter(), longer))
    assert "the drafter has 2,048 positions and 4,096 are the target's" in found["warning"]
    assert told(context_findings(drafter(), longer, context=2048)) == {}
    asked = told(context_findings(drafter(), target(), context=3000))["warning"]
    assert "3,000 are asked for" in asked
    assert "3,000 positions are asked for and the target has 2,048" in asked


def test_layers_that_see_everything_are_a_note_and_a_window_shorter_than_the_block_a_warning() -> None:
    assert "1 of 2 layers" in told(context_findings(drafter_with(layer_windows=(None, 64)), None))["note"]
    assert (
        "a window of 4 is shorter than a block of 8"
        in told(context_findings(drafter_with(layer_windows=(4, 4)), None))["warning"]
    )
    assert told(context_findings(drafter_with(layer_windows=(64, 64)), None)) == {}


def test_a_drafter_in_a_wider_type_than_its_targets_is_a_note() -> None:
    wide = replace(drafter(), dtypes={"f32": 10})
    assert "engines run it in bf16, which rounds weights" in told(dtype_findings(wide, target()))["note"]
    assert told(dtype_findings(wide, replace(target(), dtype="float32"))) == {}
    assert told(dtype_findings(replace(wide, layout="gguf"), target())) == {}


def test_a_weight_that_float16_cannot_hold_is_an_error_where_the_target_is_in_it() -> None:
    large = replace(drafter(), weights={"fc.weight": Weights(0, 70000.0)}, dtypes={"f32": 10})
    assert "fc.weight holds 7e+04" in told(dtype_findings(large, replace(target(), dtype="float16")))["error"]
    assert "error" not in told(dtype_findings(large, target()))


def test_what_could_not_be_read_is_an_error_with_the_way_to_see_more() -> None:
    broken = replace(drafter(), problems=("1 of 36 tensors missing: fc.weight",))
    found = told(drafter_findings(broken))["error"]
    assert "drafter: 1 of 36 tensors missing: fc.weight -> get it again" in found
    assert "dflash2 inspect" in found
    assert "dflash2 export-gguf" in told(drafter_findings(replace(broken, layout="gguf")))["error"]
    assert (
        "names no vocab_size"
        in told(target_findings(replace(target(), problems=("config.json names no vocab_size",))))["error"]
    )


def test_weights_that_draft_nothing_are_told() -> None:
    nan = replace(drafter(), weights={"fc.weight": Weights(3, 1.0)})
    assert "no finite numbers in fc.weight" in told(drafter_findings(nan))["error"]
    zero = replace(drafter(), weights={"candidate_selector.successor_codebook": Weights(0, 0.0)})
    assert "as before training: candidate_selector.successor_codebook" in told(drafter_findings(zero))["warning"]


def test_a_manifest_that_says_otherwise_is_an_error() -> None:
    assert told(drafter_findings(replace(drafter(), manifest=()))) == {}
    changed = replace(drafter(), manifest=("model.safetensors has the sha256 a, expected b",))
    assert "not what its manifest says: model.safetensors" in told(drafter_findings(changed))["error"]


def test_chat_templates_are_held_against_each_other() -> None:
    other = replace(drafter(), chat_template="{{ other }}")
    assert "in chats fewer drafts are kept" in told(chat_findings(other, target()))["warning"]
    assert told(chat_findings(replace(drafter(), chat_template=target().chat_template), target())) == {}
    assert "brings none" in told(chat_findings(drafter(), replace(target(), chat_template=None)))["note"]


@pytest.mark.parametrize(
    ("licence", "level", "words"),
    [
        ("cc-by-nc-nd-4.0", "warning", "CC BY-NC-ND 4.0: not for commercial use; changed copies may not be passed on"),
        ("CC BY-NC 4.0", "warning", "CC BY-NC 4.0: not for commercial use"),
        ("cc-by-nd-4.0", "warning", "changed copies may not be passed on"),
        ("cc-by-sa-4.0", "warning", "stay under the same licence"),
        ("acme-non-commercial", "warning", "not for commercial use"),
        ("other", "warning", "terms of its own (other)"),
        ("gpl-3.0", "note", "which has conditions"),
        ("llama3", "note", "which has conditions"),
    ],
)
def test_what_a_licence_restricts_is_said_plainly(licence: str, level: str, words: str) -> None:
    found = told(licence_findings(replace(drafter(), licences={"README.md": licence})))
    assert set(found) == {level}
    assert words in found[level]


@pytest.mark.parametrize("licence", ["apache-2.0", "MIT", "Apache 2.0", "cc-by-4.0", "bsd-3-clause"])
def test_of_a_free_licence_nothing_is_said(licence: str) -> None:
    assert told(licence_findings(replace(drafter(), licences={"README.md": licence}))) == {}


def test_a_licence_that_is_not_stated_and_two_that_contradict_each_other_are_told() -> None:
    assert "states none" in told(licence_findings(replace(drafter(), licences={})))["note"]
    both = {"README.md": "apache-2.0", "dflash2_manifest.json": "cc-by-nc-4.0"}
    found = told(licence_findings(replace(drafter(), licences=both)))["warning"]
    assert "apache-2.0 in README.md, cc-by-nc-4.0 in dflash2_manifest.json" in found
    assert "not for commercial use" in found


def test_a_scale_that_an_engine_drops_is_an_error_and_none_where_the_plugin_tells_it() -> None:
    beside = replace(drafter(), document={"output_multiplier": 0.5, "dflash_config": {}})
    for name in ("vllm", "sglang"):
        assert "stands beside dflash_config" in told(dropped_key_findings(engine(name, route="native"), beside))["error"]
        assert told(dropped_key_findings(engine(name), beside)) == {}
    inside = replace(drafter(), document={"dflash_config": {"output_multiplier": 0.5, "final_logit_softcapping": 20.0}})
    for name in ("vllm", "sglang", "llama-cpp"):
        assert told(dropped_key_findings(engine(name, route="native"), inside)) == {}


def test_a_scale_that_sglang_reads_nowhere_and_one_that_vllm_loses_from_speculators_layout() -> None:
    embedding = replace(drafter(), document={"dflash_config": {"input_embedding_scale": 2.0}})
    assert (
        "input_embedding_scale is not read by SGLang"
        in told(dropped_key_findings(engine("sglang", route="native"), embedding))["error"]
    )
    assert told(dropped_key_findings(engine("vllm", route="native"), embedding)) == {}
    speculators = replace(drafter(), layout="speculators", document={"final_logit_softcapping": 20.0})
    assert "vLLM loses it" in told(dropped_key_findings(engine("vllm", route="native"), speculators))["error"]


def test_a_scale_that_changes_nothing_may_stand_anywhere() -> None:
    neutral = replace(drafter(), document={"output_multiplier": 1.0, "final_logit_softcapping": 0})
    assert told(dropped_key_findings(engine("vllm", route="native"), neutral)) == {}


def test_windows_that_a_key_lifts_and_an_engine_slides_all_the_same_are_an_error() -> None:
    lifted = replace(drafter(), document={"use_sliding_window": False, "layer_types": ["sliding_attention", "full_attention"]})
    for name in ("vllm", "sglang"):
        assert "slides them all the same" in told(dropped_key_findings(engine(name, route="native"), lifted))["error"]
        assert told(dropped_key_findings(engine(name), lifted)) == {}
    called = replace(drafter(), document={"use_sliding_window": False, "layer_types": ["full_attention"]})
    assert told(dropped_key_findings(engine("vllm", route="native"), called)) == {}
