"""The faults that users of such drafters met, for whole engines: the tests that every engine goes through, case by case.

What is set when an engine starts, and what only its own interface can ask, is tested where that engine's tests are. Cases that
an engine cannot express stand with their reason; `tests/core/test_known_faults.py` has them, mutants included.
"""

from pathlib import Path

import pytest

from tests.core import test_known_faults as core
from tests.listing import missing

TESTS = Path(__file__).parents[1]
TABLE = "cross_engine/test_table.py::test_"
ASKED = "cross_engine/test_requests.py::test_"
REFUSED = "cross_engine/test_refusals.py::test_"
WRONG = "cross_engine/test_drafters.py::test_"

BY_NAME = REFUSED + "a_broken_drafter_is_refused_by_name"
IDENTICAL = TABLE + "every_column_is_token_identical"
KEPT = TABLE + "every_engine_keeps_as_many_drafts_of_every_place_as_the_definition_says"
NO_GOOD = WRONG + "the_text_is_the_targets_and_the_counters_tell"

CASES: dict[str, tuple[str, ...]] = {
    "T-TAP": (KEPT, BY_NAME, NO_GOOD),
    "T-TAPCOUNT": (BY_NAME,),
    "T-EXACT": (IDENTICAL, NO_GOOD, TABLE + "an_id_exchanged_in_one_column_is_seen"),
    "T-FILTER": (ASKED + "a_filter_that_leaves_one_id_is_greedy",),
    "T-PEN": (ASKED + "a_history_that_grows_inside_the_block_is_the_one_that_penalties_see",),
    "T-SEED": (ASKED + "a_seed_gives_the_same_text_alone_and_in_company",),
    "T-MIX": (ASKED + "a_greedy_row_beside_sampled_ones_is_what_it_is_alone",),
    "T-EOS": (ASKED + "a_text_ends_with_the_id_that_ends_it_and_nothing_follows",),
    "T-LEN": (ASKED + "budgets_that_end_at_every_place_of_two_blocks_are_met_exactly",),
    "T-STOPSTR": (ASKED + "a_stop_string_cuts_the_text_where_it_is_complete",),
    "T-COUNT": (ASKED + "budgets_that_end_at_every_place_of_two_blocks_are_met_exactly",),
    "T-GRAM": (ASKED + "a_schema_is_kept_inside_blocks_as_it_is_without_them",),
    "T-LOGP": (ASKED + "logprobs_are_those_of_plain_decoding",),
    "T-SWA": (KEPT,),
    "T-PREFIX": (ASKED + "a_prompt_that_is_asked_again_comes_from_the_cache_and_keeps_as_many_drafts",),
    "T-REUSE": (ASKED + "an_abort_leaves_the_next_request_as_it_was", IDENTICAL),
    "T-BATCH": (ASKED + "rows_of_different_lengths_and_budgets_are_what_they_are_alone",),
    "T-PAD": (ASKED + "rows_of_different_lengths_and_budgets_are_what_they_are_alone",),
    "T-MAXLEN": (ASKED + "a_text_that_runs_into_the_contexts_end_is_plain_decodings_up_to_it",),
    "T-DEPTH": (
        REFUSED + "a_number_of_drafts_is_said_in_the_engines_own_words",
        REFUSED + "more_drafts_than_a_block_has_are_refused_with_both_numbers",
    ),
    "T-ALIAS": (REFUSED + "a_number_of_drafts_is_said_in_the_engines_own_words",),
    "T-ACTIVE": (KEPT, NO_GOOD),
    "T-V2KEY": (BY_NAME, KEPT),
    "T-CFG": (BY_NAME,),
    "T-ROPE": (KEPT,),
    "T-VOCAB": (BY_NAME,),
    "T-MASK": (BY_NAME,),
    "T-DTYPE": (BY_NAME,),
    "T-QDRAFT": (BY_NAME,),
    "T-SEL": (KEPT,),
    "T-CONV": (KEPT,),
    "T-METRIC": (ASKED + "the_counters_are_the_sums_of_what_the_requests_were_told", KEPT),
    "T-MODE": (BY_NAME, REFUSED + "a_target_in_the_drafters_place_is_refused"),
    "T-SEC": (BY_NAME, REFUSED + "a_pickle_is_not_opened"),
}

OF_EACH_ENGINE: dict[str, tuple[str, ...]] = {
    "T-RES": (
        "vllm/test_sampled.py::test_twenty_thousand_tokens_are_the_targets_own",
        "sglang/test_sampled.py::test_twenty_thousand_tokens_were_tested",
        "llama_cpp/test_law.py::test_every_token_has_the_targets_own_law",
    ),
    "T-RNG": (
        "vllm/test_sampled.py::test_a_seeds_drafts_and_text_depend_on_nothing_else",
        "sglang/test_draws.py::test_draws_that_share_their_noise_are_found",
    ),
    "T-QMATCH": (
        "vllm/test_sampled.py::test_a_fault_is_found_with_fewer",
        "sglang/test_draws.py::test_what_is_committed_has_the_targets_law_at_every_place_of_a_block",
    ),
    "T-GREEDYQ": (
        "vllm/test_sampled.py::test_a_fault_is_found_with_fewer",
        "sglang/test_sampled.py::test_a_mutant_fails_the_law_test",
        "llama_cpp/test_sampled.py::test_a_seed_gives_the_ids_of_plain_llama_cpp",
    ),
    "T-CHUNK": (
        "vllm/test_greedy.py::test_chunks_of_prompts_and_preemptions_change_no_text",
        "sglang/test_pressure.py::test_thirty_two_requests_in_chunks_with_retractions_change_no_id",
        "llama_cpp/test_context.py::test_a_prompt_that_goes_on_from_a_cached_one_gives_the_ids_of_a_fresh_server",
    ),
    "T-BUDGET": (
        "vllm/test_start.py::test_a_config_that_cannot_be_right_is_refused",
        "llama_cpp/test_arguments.py::test_blocks_that_do_not_fit_into_a_pass_are_a_sentence",
    ),
    "T-EMB": ("vllm/test_scales.py::test_drafts_are_the_cores_with_scale_softcap_and_embedding_scale",),
    "T-TP": (
        "vllm/test_start.py::test_a_config_that_cannot_be_right_is_refused",
        "sglang/test_start.py::test_arguments_that_do_not_work_are_refused",
    ),
    "T-PP": (
        "vllm/test_start.py::test_a_config_that_cannot_be_right_is_refused",
        "sglang/test_start.py::test_arguments_that_do_not_work_are_refused",
    ),
    "T-GGUF": (
        "gguf/test_round_trip.py::test_draft_logits_are_equal_before_and_after",
        "llama_cpp/test_broken_files.py::test_a_broken_drafter_is_a_sentence",
    ),
}

CANNOT = {
    "T-CAUSAL": "the embedded drafter's blocks are not causal; one whose are would have to be trained",
    "T-THINK": "the embedded target has no thoughts, and where they end is each engine's own reasoning parser",
    "T-RAG": "a request cannot choose its number of drafts; budgets of different lengths in one batch are asked in T-BATCH",
    "T-QHEAD": "the embedded target is not quantised, and engines quantise with kernels that a CPU lacks",
    "T-STATE": "needs a hybrid target of the size of an engine's kernels",
    "T-NUM": "logits cannot be handed to a server",
    "T-TIE": "logits cannot be handed to a server",
    "T-MEM": "the embedded drafter's window is 96 positions, too little to be seen beside an engine",
    "T-CONC": "the gate is the Transformers engine's own",
    "T-MM": "the embedded target reads text alone",
    "T-LORA": "adapters on a target are trained for it, and none is for the embedded one",
}


@pytest.mark.parametrize("name", [*CASES, *OF_EACH_ENGINE])
def test_every_test_of_a_case_exists(name: str) -> None:
    gone = missing(TESTS, (CASES | OF_EACH_ENGINE)[name])
    assert not gone, f"{gone} is not there: where did the tests of {name} go?"


def test_every_case_stands_in_one_of_the_lists() -> None:
    lists = (CASES, OF_EACH_ENGINE, CANNOT)
    assert sum(map(len, lists)) == len({name for each in lists for name in each})
    assert {name for each in lists for name in each} == {*core.CASES, *core.ELSEWHERE}
