"""An engine's own arguments: lossy ones, and those that cut or switch off what is drafted."""

import json

import pytest

from dflash2_core.diagnosis.arguments import options_of, vllm_speculation
from dflash2_core.diagnosis.blocks import block_findings, block_in_words
from dflash2_core.diagnosis.greedy_drafts import greedy_findings
from dflash2_core.diagnosis.switches import switch_findings
from dflash2_core.errors import EngineError
from tests.core.diagnosis.parts import drafter, engine, told
from tests.core.toys import drafter_config

CONFIG = drafter().config
assert CONFIG is not None


def speculation(**options: object) -> tuple[str, str]:
    return "--speculative-config", json.dumps(options)


def test_options_are_read_in_every_spelling() -> None:
    assert options_of(["--a_b=1", "--c", "2", "--flag", "--n", "-3", "-x"]) == {
        "--a-b": "1",
        "--c": "2",
        "--flag": "",
        "--n": "-3",
        "-x": "",
    }


def test_vllms_speculation_is_read_in_every_spelling() -> None:
    spelt = ["-sc", '{"model": "d"}', "--speculative-config.num_speculative_tokens", "3", "--spec-method", "dflash"]
    assert vllm_speculation(options_of(spelt)) == {"model": "d", "num_speculative_tokens": 3, "method": "dflash"}
    assert vllm_speculation(options_of(["--port", "1"])) is None


@pytest.mark.parametrize("text", ["{model", "[1]", ""])
def test_a_speculative_config_that_is_no_object_could_not_be_read(text: str) -> None:
    with pytest.raises(EngineError, match="expected a JSON object"):
        vllm_speculation(options_of(["--speculative-config", text]))


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("vllm", speculation(rejection_sample_method="synthetic"), "without the target's consent"),
        ("vllm", speculation(synthetic_acceptance_length=4), "without the target's consent"),
        ("vllm", speculation(rejection_sample_method="block"), "only standard was found lossless"),
        ("vllm", speculation(num_speculative_tokens_per_batch_size=[1]), "are built for one"),
        ("sglang", ("--speculative-accept-threshold-single", "0.9"), "without the target's consent"),
        ("sglang", ("--speculative-accept-threshold-acc=0.5",), "without the target's consent"),
        ("llama-cpp", ("--spec-synth-len", "4"), "without the target's consent"),
        ("llama-cpp", ("--spec-synth-rates", "1,0.5"), "without the target's consent"),
    ],
)
def test_a_switch_that_makes_the_output_another_one_is_an_error(name: str, arguments: tuple[str, ...], words: str) -> None:
    assert words in told(switch_findings(engine(name, *arguments)))["error"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("sglang", ("--speculative-draft-window-size", "64")),
        ("sglang", ("--speculative-use-block-verification",)),
        ("llama-cpp", ("--spec-draft-p-min", "0.75")),
    ],
)
def test_a_switch_that_only_cuts_drafts_or_was_never_tested_is_a_warning(name: str, arguments: tuple[str, ...]) -> None:
    found = told(switch_findings(engine(name, *arguments)))
    assert set(found) == {"warning"}
    assert arguments[0] in found["warning"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("vllm", speculation(rejection_sample_method="standard")),
        ("sglang", ("--speculative-accept-threshold-single", "1.0", "--port", "1")),
        ("llama-cpp", ("--spec-draft-p-min", "0", "-fa", "off")),
        ("vllm", ()),
    ],
)
def test_defaults_and_other_arguments_are_not_mentioned(name: str, arguments: tuple[str, ...]) -> None:
    assert told(switch_findings(engine(name, *arguments))) == {}


def test_a_threshold_that_is_no_number_could_not_be_read() -> None:
    with pytest.raises(EngineError, match="expected a number"):
        list(switch_findings(engine("sglang", "--speculative-accept-threshold-acc", "most")))


def test_one_block_has_four_names() -> None:
    assert CONFIG is not None
    words = {each.engine: (each.count, each.left_out) for each in block_in_words(CONFIG)}
    assert words["vllm"][0] == "num_speculative_tokens 7"
    assert words["sglang"][0] == "--speculative-num-draft-tokens 8"
    assert words["llama-cpp"][0] == "--spec-draft-n-max 7"
    assert words["llama-cpp"][1].startswith("3, of 7")
    assert words["ollama"] == ("draft_num_predict 7", "0 was seen: the drafter is loaded, and nothing is drafted")
    short = {each.engine: each.left_out for each in block_in_words(drafter_config(block_size=3))}
    assert short["llama-cpp"].startswith("2, of 2")


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("vllm", speculation(model="d", num_speculative_tokens=0), "nothing is drafted"),
        ("vllm", speculation(model="d", num_speculative_tokens=8), "8 drafts, and a drafter of block size 8 makes 7"),
        ("vllm", speculation(model="d", num_speculative_tokens="all"), "expected a number"),
        ("vllm", speculation(model="d", method="eagle3", num_speculative_tokens=7), "run by dflash alone"),
        ("sglang", ("--speculative-num-draft-tokens", "1"), "nothing is drafted"),
        ("sglang", ("--speculative-num-draft-tokens", "9"), "makes 7"),
        ("sglang", ("--speculative-algorithm", "EAGLE3"), "run by DFLASH alone"),
        ("llama-cpp", ("-md", "d.gguf", "--spec-type", "none", "--spec-draft-n-max", "7"), "nothing is drafted with it"),
        ("llama-cpp", ("--spec-type", "draft-simple", "--spec-draft-n-max", "7"), "run as what it is not"),
        ("llama-cpp", ("--spec-draft-n-max", "0"), "nothing is drafted"),
        ("llama-cpp", ("--draft-max", "7"), "was removed"),
        ("llama-cpp", ("--spec-type", "draft-dflash", "--spec-draft-n-min", "5"), "are thrown away"),
    ],
)
def test_arguments_with_which_nothing_is_drafted_are_errors(name: str, arguments: tuple[str, ...], words: str) -> None:
    assert CONFIG is not None
    assert words in told(block_findings(engine(name, *arguments), CONFIG))["error"]


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("vllm", speculation(model="d", num_speculative_tokens=3), "3 drafts, and a drafter of block size 8 makes 7"),
        (
            "sglang",
            ("--speculative-num-draft-tokens", "7"),
            "which counts rows, the last token of the text among them: 6 drafts",
        ),
        ("sglang", ("--speculative-dflash-block-size", "4"), "3 drafts"),
        ("llama-cpp", ("-md", "d.gguf", "--spec-type", "draft-dflash"), "llama.cpp's default is 3: 3 drafts"),
        ("llama-cpp", ("-md", "d.gguf"), "llama.cpp's default is 3: 3 drafts"),
        ("llama-cpp", ("--spec-draft-n-max", "3"), "3 drafts"),
    ],
)
def test_arguments_that_cut_the_block_are_warnings(name: str, arguments: tuple[str, ...], words: str) -> None:
    assert CONFIG is not None
    found = told(block_findings(engine(name, *arguments), CONFIG))
    assert set(found) == {"warning"}
    assert words in found["warning"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("vllm", ()),
        ("vllm", speculation(model="d")),  # the plugin counts
        ("vllm", speculation(model="d", num_speculative_tokens=7)),
        ("sglang", ("--speculative-algorithm", "DFLASH", "--speculative-num-draft-tokens", "8")),
        ("llama-cpp", ()),
        ("llama-cpp", ("-md", "d.gguf", "--spec-type", "draft-dflash", "--spec-draft-n-max", "7")),
        ("llama-cpp", ("--spec-draft-n-min", "5")),  # handed on by `dflash2 serve`, which says 7
    ],
)
def test_of_whole_blocks_nothing_is_said(name: str, arguments: tuple[str, ...]) -> None:
    assert CONFIG is not None
    assert told(block_findings(engine(name, *arguments), CONFIG)) == {}


def test_vllm_alone_does_not_start_without_a_number() -> None:
    assert CONFIG is not None
    by_itself = engine("vllm", *speculation(model="d"), route="native")
    assert "does not start without it" in told(block_findings(by_itself, CONFIG))["error"]


def test_llama_cpps_default_cuts_no_block_that_is_as_short() -> None:
    short = drafter_config(block_size=4)
    assert told(block_findings(engine("llama-cpp", "-md", "d", "--spec-type", "draft-dflash"), short)) == {}


def test_llama_cpp_drafts_greedily_at_every_temperature() -> None:
    assert "drafts the most probable path all the same" in told(greedy_findings(engine("llama-cpp")))["note"]
    probabilistic = engine("llama-cpp", "--spec-draft-sampling", "probabilistic")
    assert "whatever it says" in told(greedy_findings(probabilistic))["warning"]


def test_vllms_greedy_drafts_are_a_warning_where_they_are_asked_for_or_nobody_asks_for_others() -> None:
    assert "is greedy" in told(greedy_findings(engine("vllm", *speculation(draft_sample_method="greedy"))))["warning"]
    assert "vLLM's default is greedy" in told(greedy_findings(engine("vllm", route="native")))["warning"]
    asked = engine("vllm", *speculation(draft_sample_method="probabilistic"), route="native")
    assert told(greedy_findings(asked)) == {}


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_the_plugins_sample_their_drafts(name: str) -> None:
    assert told(greedy_findings(engine(name))) == {}
