"""Variables of the environment that switch the drafter off, make the output another one, or make an engine crawl."""

import pytest

from dflash2_core.diagnosis.variables import variable_findings
from tests.core.diagnosis.parts import QUIET, engine, told


@pytest.mark.parametrize("name", ["vllm", "sglang", "llama-cpp"])
def test_a_quiet_environment_says_nothing(name: str) -> None:
    assert told(variable_findings(engine(name))) == {}


@pytest.mark.parametrize(
    ("name", "variable", "value", "words"),
    [
        ("vllm", "DFLASH2_VLLM", "off", "does nothing in vLLM"),
        ("vllm", "VLLM_PLUGINS", "other", "does not load dflash2"),
        ("vllm", "VLLM_PLUGINS", "", "does not load dflash2"),
        ("sglang", "DFLASH2_SGLANG", "off", "does nothing in SGLang"),
        ("sglang", "SGLANG_PLUGINS", "other", "does not load dflash2"),
        ("sglang", "SGLANG_SIMULATE_ACC_LEN", "3", "without the target's consent"),
        ("llama-cpp", "LLAMA_ARG_SPEC_SYNTH_LEN", "3", "without the target's consent"),
        ("llama-cpp", "LLAMA_ARG_SPEC_SYNTH_RATES", "1,1", "without the target's consent"),
        ("llama-cpp", "LLAMA_ARG_SPEC_DRAFT_N_MAX", "2", "refuses to start"),
    ],
)
def test_an_error_names_the_variable_first_and_what_it_does(name: str, variable: str, value: str, words: str) -> None:
    (finding,) = variable_findings(engine(name, variables={**QUIET, variable: value}))
    assert finding.level == "error"
    assert finding.reason.split()[0] == variable
    assert words in finding.reason
    assert variable in finding.mend


@pytest.mark.parametrize(
    ("name", "variable", "value"),
    [
        ("vllm", "DFLASH2_VLLM", "auto"),
        ("vllm", "VLLM_PLUGINS", "other,dflash2"),
        ("sglang", "SGLANG_PLUGINS", ""),
        ("sglang", "SGLANG_SIMULATE_ACC_LEN", "-1"),
        ("sglang", "LLAMA_ARG_SPEC_DRAFT_N_MAX", "2"),
        ("llama-cpp", "LLAMA_ARG_CTX_SIZE", "4096"),
    ],
)
def test_what_changes_nothing_is_not_mentioned(name: str, variable: str, value: str) -> None:
    assert told(variable_findings(engine(name, variables={**QUIET, variable: value}))) == {}


@pytest.mark.parametrize(("name", "variable"), [("vllm", "DFLASH2_VLLM"), ("sglang", "DFLASH2_SGLANG")])
def test_a_mode_that_is_none_is_a_warning(name: str, variable: str) -> None:
    found = told(variable_findings(engine(name, variables={**QUIET, variable: "0"})))
    assert "is '0', which is none of auto, on, off and is taken for auto" in found["warning"]


def test_threads_that_are_not_set_are_a_warning_where_the_plugin_runs_which_is_on_a_cpu() -> None:
    found = told(variable_findings(engine("vllm", variables={})))
    assert "OMP_NUM_THREADS and VLLM_CPU_OMP_THREADS_BIND are not set" in found["warning"]
    assert "OMP_NUM_THREADS is not set" in told(variable_findings(engine("sglang", variables={})))["warning"]
    assert told(variable_findings(engine("vllm", variables={}, route="native"))) == {}
    assert told(variable_findings(engine("llama-cpp", variables={}))) == {}


def test_two_runners_asked_for_at_once_is_a_warning() -> None:
    both = {**QUIET, "VLLM_USE_V2_MODEL_RUNNER": "1", "DFLASH2_VLLM": "on"}
    assert "unset one of the two" in told(variable_findings(engine("vllm", variables=both)))["warning"]
