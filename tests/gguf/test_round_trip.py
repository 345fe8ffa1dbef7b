"""What goes into a GGUF comes out of it: the same config, the same weights, the same logits."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash2_core import Drafter, DrafterConfig, RandomStreams, load_drafter
from dflash2_core.config.limits import SECOND_VERSION_FIELDS
from dflash2_core.drafter.model import OWN_EMBEDDING, OWN_HEAD, OWN_MASK
from gguf_export import export, read
from gguf_export.header import read_header
from gguf_export.keys import SCALES, SIZES
from tests.core.toys import MASK
from tests.gguf.toys import block_logits, loaded, rewritten, saved, toy_drafter, with_value, write_target

FULL, SLIDING = (None, None), (12, 12)
COMMITTED = (5, 40, 3000)  # inside the window, past it, far along the text
CASES: dict[str, dict[str, Any]] = {
    "as published: sliding, not causal": {"layer_windows": SLIDING},
    "full attention, not causal": {"layer_windows": FULL},
    "causal and sliding": {"layer_windows": SLIDING, "layer_causal": (True, True)},
    "causal and full": {"layer_windows": FULL, "layer_causal": (True, True)},
    "one full layer, one sliding": {"layer_windows": (None, 12)},
    "one sliding layer, one full": {"layer_windows": (9, None)},
    "a causal window shorter than the block": {"layer_windows": (5, 5), "layer_causal": (True, True)},
    "scale, multiplier and softcap": {
        "layer_windows": SLIDING,
        "input_embedding_scale": 3.5,
        "output_multiplier": 0.19611613513818404,
        "final_logit_softcapping": 2.0,
    },
    "kernel 3": {"conv_kernel_size": 3},
    "kernel 4, group 8": {"conv_kernel_size": 4, "conv_group_size": 8},
    "one tap": {"target_layer_ids": (3,)},
    "five taps out of order": {"target_layer_ids": (4, 0, 3, 1, 2)},
    "block 2": {"block_size": 2},
    "block 16": {"block_size": 16, "layer_windows": (16, 16)},
    "three layers": {"num_hidden_layers": 3, "layer_windows": (12, None, 12)},
    "one head for keys and values": {"num_key_value_heads": 1},
    "rms_norm_eps 1e-5": {"rms_norm_eps": 1e-5},
    "rope base 1e7": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e7}},
    "rope linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    "rope yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
        }
    },
    "rope yarn with all its keys": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 5e5,
            "factor": 8.0,
            "original_max_position_embeddings": 512,
            "attention_factor": 0.75,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
        }
    },
    "DFlash 1, full": {"version": 1, "layer_windows": FULL},
    "DFlash 1, sliding and causal": {"version": 1, "layer_windows": SLIDING, "layer_causal": (True, True)},
}
MUTANTS = {
    # a key told wrongly -> the case in which the logits must tell
    "rope.freq_base": (20000.0, "as published: sliding, not causal"),
    "attention.causal": (True, "as published: sliding, not causal"),
    "attention.sliding_window": (11, "as published: sliding, not causal"),
    "attention.sliding_window_pattern": ([False, False], "as published: sliding, not causal"),
    "attention.layer_norm_rms_epsilon": (1e-3, "as published: sliding, not causal"),
    "logit_scale": (0.2, "scale, multiplier and softcap"),
    "final_logit_softcapping": (2.1, "scale, multiplier and softcap"),
    "embedding_scale": (3.0, "scale, multiplier and softcap"),
    "rope.scaling.factor": (5.0, "rope linear"),
    "rope.scaling.attn_factor": (1.0, "rope yarn with all its keys"),
    "rope.scaling.original_context_length": (256, "rope yarn with all its keys"),
}


def assert_same_logits(before: Drafter, after: Drafter) -> None:
    for committed in COMMITTED:
        expected = block_logits(before, committed)
        assert expected.std() > 0.05, "logits that say nothing prove nothing"
        torch.testing.assert_close(block_logits(after, committed), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_draft_logits_are_equal_before_and_after(changes: dict[str, Any], tmp_path: Path, target: Path) -> None:
    before = toy_drafter(**changes)
    export(saved(before, tmp_path / "drafter"), tmp_path / "d.gguf", tokenizer_from=target, outtype="f32")
    after = loaded(tmp_path / "d.gguf")
    assert_same_logits(before, after)
    for name, tensor in before.state_dict().items():
        assert torch.equal(after.state_dict()[name], tensor), name


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_the_config_comes_back_as_it_was(changes: dict[str, Any], tmp_path: Path, target: Path) -> None:
    before = toy_drafter(**changes).config
    export(saved(toy_drafter(**changes), tmp_path / "drafter"), tmp_path / "d.gguf", tokenizer_from=target, outtype="f32")
    after, _ = read(tmp_path / "d.gguf")
    assert after.output_multiplier == pytest.approx(before.output_multiplier, rel=1e-7)  # GGUF has float32 only
    rope = {name: pytest.approx(value, rel=1e-6) for name, value in before.rope_parameters.items() if name != "rope_type"}
    assert after.rope_parameters == rope | {"rope_type": before.rope_parameters["rope_type"]}
    same = {"output_multiplier": before.output_multiplier, "rope_parameters": before.rope_parameters}
    assert replace(after, **same) == before


def test_every_field_of_a_config_has_its_place() -> None:
    """A new field has to be told by a key or refused: until someone has decided which, this fails."""
    told = {*SIZES, *SCALES, *SECOND_VERSION_FIELDS, "block_size", "target_layer_ids", "rms_norm_eps", "rope_parameters"}
    told |= {"layer_windows", "layer_causal", "num_target_layers"}
    from_the_tokenizer = {"vocab_size", "mask_token_id", "bos_token_id", "eos_token_ids", "pad_token_id"}
    from_what_is_there = {"version"}
    only_one_value = {"target_hidden_size", "hidden_act"}
    places = (told, from_the_tokenizer, from_what_is_there, only_one_value)
    assert {field.name for field in fields(DrafterConfig)} == set().union(*places)
    assert sum(map(len, places)) == len(fields(DrafterConfig))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_key_told_wrongly_changes_the_logits(name: str, tmp_path: Path, target: Path) -> None:
    value, case = MUTANTS[name]
    before = toy_drafter(**CASES[case])
    export(saved(before, tmp_path / "drafter"), tmp_path / "d.gguf", tokenizer_from=target, outtype="f32")
    key = with_value(read_header(tmp_path / "d.gguf"), f"dflash.{name}", value)
    mutant = loaded(rewritten(tmp_path / "d.gguf", tmp_path / "mutant.gguf", keys=[key]))
    with pytest.raises(AssertionError, match="not close"):
        assert_same_logits(before, mutant)


def test_drafts_are_the_same_sampled_too(tmp_path: Path, target: Path) -> None:
    before = toy_drafter(layer_windows=SLIDING)
    export(saved(before, tmp_path / "drafter"), tmp_path / "d.gguf", tokenizer_from=target, outtype="f32")
    generator = torch.Generator().manual_seed(7)
    embedding, taps = torch.randn(37, 16, generator=generator), torch.randn(2, 30, 48, generator=generator)
    proposals = []
    for drafter in (before, loaded(tmp_path / "d.gguf")):
        context = drafter.new_context(2)
        for _ in range(2):
            context.join()
        context.append(taps, [30, 20])
        proposals.append(
            drafter.propose(
                context,
                torch.tensor([4, 9]),
                [7, 5],
                embed=lambda ids: embedding[ids],
                head=lambda hidden: hidden @ embedding.T,
                temperature=torch.tensor([0.0, 1.0]),
                streams=RandomStreams(torch.tensor([1, 2])),
            )
        )
    assert proposals[0].lengths.tolist() == [7, 5]
    assert torch.equal(proposals[0].tokens, proposals[1].tokens)


@pytest.mark.parametrize("own", [(OWN_HEAD,), (OWN_EMBEDDING, OWN_HEAD)], ids=["a head", "embedding and head"])
def test_tables_of_its_own_come_back(own: tuple[str, ...], tmp_path: Path, target: Path) -> None:
    before = toy_drafter(own=own)
    export(saved(before, tmp_path / "drafter"), tmp_path / "d.gguf", tokenizer_from=target, outtype="f32")
    after = loaded(tmp_path / "d.gguf")
    assert set(after.state_dict()) == set(before.state_dict())
    assert_same_logits(before, after)


def test_a_mask_row_of_its_own_lies_in_the_embedding(tmp_path: Path, target: Path) -> None:
    before = toy_drafter(own=(OWN_EMBEDDING, OWN_HEAD, OWN_MASK))
    export(saved(before, tmp_path / "drafter"), tmp_path / "d.gguf", tokenizer_from=target, outtype="f32")
    after = loaded(tmp_path / "d.gguf")
    assert torch.equal(after.state_dict()[OWN_EMBEDDING][MASK], before.state_dict()[OWN_MASK])
    assert not torch.equal(before.state_dict()[OWN_EMBEDDING][MASK], before.state_dict()[OWN_MASK])
    assert_same_logits(before, after)


def test_every_layout_gives_the_same_drafter(tmp_path: Path, target: Path) -> None:
    before = toy_drafter(layer_windows=SLIDING)
    folders = {"zlab": tmp_path / "zlab", "speculators": tmp_path / "speculators"}
    for layout, folder in folders.items():
        saved(before, folder, layout=layout)
    folders["sharded"] = sharded(saved(before, tmp_path / "sharded"))
    folders["rope base nested, block at the top"] = moved_keys(saved(before, tmp_path / "moved"))
    for name, folder in folders.items():
        export(folder, tmp_path / "d.gguf", tokenizer_from=target, outtype="f32")
        after = loaded(tmp_path / "d.gguf")
        assert_same_logits(before, after)
        assert replace(after.config, num_target_layers=6) == before.config, name


def sharded(folder: Path) -> Path:
    """The same weights in two files, with prefixed names, and codebooks as some stacks write them."""
    weights = load_file(folder / "model.safetensors")
    named = {f"model.{name}" + ".weight" * name.endswith("codebook"): tensor for name, tensor in weights.items()}
    names = sorted(named)
    index = {}
    for shard, part in enumerate((names[:11], names[11:]), start=1):
        file = f"model-{shard:05}-of-00002.safetensors"
        save_file({name: named[name] for name in part}, folder / file)
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


def moved_keys(folder: Path) -> Path:
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"full_attention": config["rope_parameters"], "sliding_attention": config["rope_parameters"]}
    config["block_size"] = config["dflash_config"].pop("block_size")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_f32_holds_every_stored_type_exactly(dtype: torch.dtype, tmp_path: Path, target: Path) -> None:
    before = toy_drafter(layer_windows=SLIDING).to(dtype)
    export(saved(before, tmp_path / "drafter"), tmp_path / "d.gguf", tokenizer_from=target, outtype="f32")
    _, tensors = read(tmp_path / "d.gguf")
    for name, tensor in load_drafter(tmp_path / "drafter").state_dict().items():
        assert torch.equal(tensors[name], tensor.float()), name


def test_a_dflash_1_file_without_a_block_size_is_read_as_llama_cpp_reads_it(tmp_path: Path, target: Path) -> None:
    folder = saved(toy_drafter(version=1), tmp_path / "drafter")
    export(folder, tmp_path / "d.gguf", tokenizer_from=target, outtype="f32")
    config, _ = read(rewritten(tmp_path / "d.gguf", tmp_path / "without.gguf", without=["dflash.block_size"]))
    assert config.block_size == 16


def test_the_targets_number_of_layers_is_told(tmp_path: Path, drafter: Path) -> None:
    target = write_target(tmp_path / "mtp.gguf", block_count=8, nextn_predict_layers=2)
    export(drafter, tmp_path / "d.gguf", tokenizer_from=target, outtype="f32")
    assert read(tmp_path / "d.gguf")[0].num_target_layers == 6
