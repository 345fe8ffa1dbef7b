"""The faults that users of such drafters met, case by case: the tests that hold each, and those in which the fault is put back.

A test that stands in both lists holds its fault beside the right answer. Cases that only an engine can meet are named with the
reason; their tests are the engines' own.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.listing import missing

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    """Tests as path::name, from this folder on."""

    tests: tuple[str, ...]
    mutants: tuple[str, ...]


TAPS = "transformers_engine/test_taps.py::test_"
PLACES = "config/test_places_of_keys.py::test_"
KEYS = "config/test_known_and_unknown_keys.py::test_"
LIMITS = "config/test_limits.py::test_"
SEEN = "config/test_windows_and_causality.py::test_"
OPENING = "checkpoint/test_opening.py::test_"
FILES = "checkpoint/test_files.py::test_"
LOADING = "drafter/test_loading.py::test_"
CONTEXT = "drafter/test_context.py::test_"
SELECTOR = "drafter/test_selector.py::test_"
CONVOLUTION = "drafter/test_convolution.py::test_"
PARITY = "drafter/test_parity.py::test_"
ROTARY = "drafter/test_rotary.py::test_"
LAW = "sampling/test_exact_law.py::test_"
PROPOSALS = "sampling/test_proposal_law.py::test_"
VERDICTS = "sampling/test_verification.py::test_"
DISTRIBUTION = "sampling/test_target_distribution.py::test_"
REWRITES = "sampling/test_processed_logits.py::test_"
PARAMS = "sampling/test_sampling_params.py::test_"
GREEDY = "transformers_engine/test_greedy_identity.py::test_"
SAMPLED = "transformers_engine/test_sampled.py::test_"
SEEDS = "transformers_engine/test_seeds.py::test_"
TIES = "transformers_engine/test_ties.py::test_"
STOPPING = "transformers_engine/test_stopping.py::test_"
CONTEXT_LIMIT = "transformers_engine/test_context_limit.py::test_"
STATISTICS = "transformers_engine/test_statistics.py::test_"
BROKEN = "transformers_engine/test_broken_logits.py::test_"
CONSTRAINTS = "transformers_engine/test_constraints.py::test_"
GRAMMARS = "transformers_engine/test_grammars.py::test_"
LOGPROBS = "transformers_engine/test_logprobs.py::test_"
BATCHES = "transformers_engine/test_batches.py::test_"
ROWS = "transformers_engine/test_rows.py::test_"
WIDTH = "transformers_engine/test_width.py::test_"
HYBRID = "transformers_engine/test_hybrid.py::test_"
PLAIN = "transformers_engine/test_plain_decoding.py::test_"
CACHE = "transformers_engine/test_cache.py::test_"
BORROWED = "transformers_engine/test_borrowed_tables.py::test_"
DEPTH = "transformers_engine/test_depth.py::test_"
HEALTH = "transformers_engine/test_health.py::test_"
REFUSALS = "transformers_engine/test_refusals.py::test_"

CASES: dict[str, Case] = {
    "T-TAP": Case(
        (
            TAPS + "taps_are_the_outputs_of_the_named_layers_in_the_order_named",
            TAPS + "taps_that_no_engine_could_agree_on_are_refused",
            TAPS + "every_cycle_drafts_as_after_one_prefill_of_all_that_is_committed",
            LIMITS + "taps_that_cannot_be_meant_are_refused_with_the_reason",
        ),
        (
            TAPS + "taps_shifted_by_one_layer_are_caught",
            TAPS + "taps_in_another_order_are_caught",
            TAPS + "a_context_of_other_rows_than_the_committed_ones_is_caught",
            LIMITS + "a_law_that_nobody_keeps_is_seen",
        ),
    ),
    "T-TAPCOUNT": Case(
        (PLACES + "taps_are_never_guessed_though_the_count_would_fit",),
        (PLACES + "a_constant_that_stands_in_for_a_missing_key_is_seen",),
    ),
    "T-EXACT": Case(
        (
            GREEDY + "with_a_random_drafter",
            GREEDY + "with_an_oracle_in_as_few_passes_as_there_can_be",
            GREEDY + "with_a_drafter_that_is_always_wrong_in_one_pass_a_token",
            GREEDY + "with_a_drafter_that_is_partly_right",
            GREEDY + "any_mistakes_at_any_place_of_any_block",
            GREEDY + "the_trained_pair_on_held_out_prompts",
            PLAIN + "drafting_changes_no_id_on_any_kind_of_target",
        ),
        (
            GREEDY + "an_engine_that_is_not_lossless_is_caught",
            PLAIN + "a_sliding_window_that_forgets_what_a_rollback_needs_is_caught",
            CACHE + "a_rollback_that_keeps_one_position_too_many_is_caught",
        ),
    ),
    "T-RES": Case(
        (
            LAW + "the_emitted_ids_have_the_law_of_plain_sampling",
            PROPOSALS + "walk_and_verification_together_have_the_law_of_plain_sampling",
            VERDICTS + "a_rejection_that_leaves_no_residual_draws_from_p",
        ),
        (LAW + "a_fault_put_back_is_seen", PROPOSALS + "q_of_another_temperature_breaks_the_law"),
    ),
    "T-RNG": Case(
        (
            PROPOSALS + "no_two_draws_of_a_cycle_share_a_key_or_a_value",
            PROPOSALS + "200_000_emitted_ids_have_the_frequencies_of_the_target",
            PROPOSALS + "draws_stay_independent_from_cycle_to_cycle",
        ),
        (
            PROPOSALS + "noise_shared_by_two_purposes_shows_in_the_frequencies",
            PROPOSALS + "draws_stay_independent_from_cycle_to_cycle",
        ),
    ),
    "T-QMATCH": Case(
        (
            PROPOSALS + "the_frequency_of_proposals_is_the_q_handed_over",
            CONTEXT + "the_q_handed_over_is_that_of_the_walk",
        ),
        (PROPOSALS + "the_frequency_of_proposals_is_the_q_handed_over",),
    ),
    "T-GREEDYQ": Case(
        (
            LAW + "the_emitted_ids_have_the_law_of_plain_sampling",
            LAW + "argmax_drafts_stand_longer_than_slots_sampled_alone_on_a_correlated_law",
        ),
        (LAW + "a_fault_put_back_is_seen", SAMPLED + "an_argmax_walk_is_lossless_with_a_one_hot_q_alone"),
    ),
    "T-FILTER": Case(
        (
            SAMPLED + "a_filter_that_leaves_one_id_is_greedy",
            DISTRIBUTION + "a_filter_that_leaves_one_id_equals_greedy",
            DISTRIBUTION + "every_row_of_a_mixed_batch_is_what_its_options_spell_out",
            PARAMS + "a_senseless_value_is_refused_in_a_sentence_that_shows_it",
            REFUSALS + "an_option_that_would_not_be_honoured_is_refused",
        ),
        (SAMPLED + "a_filter_that_is_not_applied_is_caught", DISTRIBUTION + "a_cut_by_value_that_keeps_ties_is_seen"),
    ),
    "T-PEN": Case(
        (
            SAMPLED + "options_that_rewrite_logits_give_the_ids_of_plain_decoding",
            REWRITES + "a_ragged_block_is_judged_as_token_by_token_growth_would",
        ),
        (
            SAMPLED + "a_history_that_stands_still_inside_the_block_is_caught",
            REWRITES + "a_history_frozen_at_the_blocks_start_is_seen",
        ),
    ),
    "T-SEED": Case(
        (
            SEEDS + "a_seed_gives_the_same_ids_in_any_company_and_another_seed_others",
            BATCHES + "a_seeded_row_does_not_depend_on_its_neighbours",
        ),
        (SEEDS + "draws_that_depend_on_the_row_or_on_what_ran_before_are_caught",),
    ),
    "T-MIX": Case(
        (
            TIES + "a_greedy_row_beside_a_sampled_one_writes_the_lowest_of_tied_ids",
            DISTRIBUTION + "a_greedy_row_with_tied_maxima_is_itself_beside_a_sampled_row",
            SELECTOR + "a_greedy_row_beside_a_sampled_one_walks_as_it_does_alone",
        ),
        (TIES + "another_rule_for_ties_is_caught", DISTRIBUTION + "greedy_as_a_tiny_temperature_would_be_seen"),
    ),
    "T-EOS": Case(
        (
            STOPPING + "an_id_that_ends_the_text_ends_it_at_every_place_of_an_accepted_run",
            STOPPING + "ends_of_the_targets_own_text_are_where_plain_decoding_has_them",
        ),
        (STOPPING + "an_end_inside_an_accepted_run_that_is_overlooked_is_caught",),
    ),
    "T-LEN": Case(
        (
            STOPPING + "a_budget_is_met_exactly_whatever_is_accepted",
            STOPPING + "a_stop_before_or_at_the_budget_is_a_stop_and_past_it_the_length_ends_the_text",
        ),
        (STOPPING + "a_budget_that_is_overrun_is_caught",),
    ),
    "T-STOPSTR": Case(
        (
            STOPPING + "a_stop_string_ends_the_text_where_it_is_complete",
            STOPPING + "any_stop_strings_in_any_text",
        ),
        (
            STOPPING + "a_stop_string_that_is_sought_once_a_block_is_caught",
            STOPPING + "a_stream_that_holds_nothing_back_is_caught",
        ),
    ),
    "T-COUNT": Case(
        (
            STOPPING + "a_budget_is_met_exactly_whatever_is_accepted",
            BROKEN + "drafts_accepted_before_the_break_are_counted_and_committed",
        ),
        (
            STATISTICS + "drafts_counted_that_were_never_committed_are_caught",
            BROKEN + "counts_that_are_wrong_where_the_logits_break_are_caught",
        ),
    ),
    "T-GRAM": Case(
        (
            CONSTRAINTS + "the_text_is_in_the_language",
            CONSTRAINTS + "greedy_ids_are_those_of_plain_constrained_decoding",
            GRAMMARS + "a_matcher_stands_where_the_history_stands_also_after_rejected_drafts",
            GRAMMARS + "past_the_end_of_a_grammar_nothing_may_follow",
            STOPPING + "a_constraint_is_never_asked_past_the_end_of_the_text",
        ),
        (
            CONSTRAINTS + "a_constraint_shown_no_draft_of_the_block_is_caught",
            GRAMMARS + "a_matcher_that_keeps_what_was_rejected_is_caught",
            STOPPING + "a_constraint_that_is_asked_past_the_end_is_caught",
        ),
    ),
    "T-THINK": Case(
        (
            CONSTRAINTS + "a_constraint_that_begins_after_thinking_leaves_the_thoughts_alone",
            CONSTRAINTS + "an_end_of_thinking_that_was_rejected_begins_nothing",
            GRAMMARS + "a_stream_holds_the_thoughts_and_what_follows",
        ),
        (
            CONSTRAINTS + "a_constraint_shown_no_draft_of_the_block_is_caught",
            CONSTRAINTS + "a_constraint_that_begins_elsewhere_is_caught",
            CONSTRAINTS + "a_constraint_that_a_rejected_draft_begins_is_caught",
        ),
    ),
    "T-LOGP": Case(
        (
            LOGPROBS + "logprobs_are_those_of_plain_decoding",
            LOGPROBS + "a_block_accepted_whole_in_part_or_not_gives_those_of_its_committed_ids",
        ),
        (LOGPROBS + "logprobs_of_another_row_or_law_are_caught",),
    ),
    "T-SWA": Case(
        (
            CONTEXT + "a_window_of_any_width_equals_a_dense_mask",
            CONTEXT + "any_mix_of_layers_equals_dense_masks",
            CONTEXT + "a_token_outside_the_window_changes_nothing_and_one_inside_does",
            SEEN + "windows_and_causality_are_read_from",
            SEEN + "keys_that_contradict_or_leave_it_open_are_refused",
        ),
        (
            CONTEXT + "a_context_window_of_another_width_is_caught",
            CONTEXT + "a_block_seen_wrongly_is_caught",
            SEEN + "a_reader_that_takes_sliding_types_at_their_word_is_seen",
            BATCHES + "a_window_that_batches_forget_is_caught",
        ),
    ),
    "T-CAUSAL": Case(
        (
            CONTEXT + "a_later_slot_reaches_an_earlier_one_only_if_not_causal",
            SEEN + "what_a_layout_can_say_it_says_exactly_and_what_it_cannot_it_refuses",
        ),
        (CONTEXT + "a_block_seen_wrongly_is_caught", SEEN + "a_reader_that_forgets_is_causal_is_seen"),
    ),
    "T-CHUNK": Case(
        (
            BATCHES + "a_prompt_read_in_chunks_is_the_prompt",
            CONTEXT + "a_prompt_in_chunks_of_any_size_gives_the_same_drafts",
        ),
        (
            BATCHES + "a_prompt_of_which_the_drafter_sees_the_last_chunk_alone_is_caught",
            CONTEXT + "a_chunk_that_loses_its_place_is_caught",
        ),
    ),
    "T-REUSE": Case(
        (
            BATCHES + "a_row_used_again_is_as_new",
            BATCHES + "an_aborted_request_leaves_the_others_as_they_are",
            BATCHES + "an_error_in_the_midst_of_a_prefill_leaves_nothing_behind",
            BATCHES + "an_error_in_a_pass_for_all_ends_all_and_leaves_nothing_behind",
            CONTEXT + "memory_that_grew_is_given_back_when_the_last_row_leaves",
        ),
        (
            BATCHES + "mutants_of_the_rows_are_caught",
            BATCHES + "an_abort_that_leaves_the_request_in_flight_is_caught",
            BATCHES + "a_prefill_that_fails_and_keeps_its_row_is_caught",
            CONTEXT + "a_row_that_joins_without_a_clean_buffer_is_caught",
        ),
    ),
    "T-BATCH": Case(
        (
            BATCHES + "each_row_is_what_it_is_alone_and_what_plain_decoding_writes",
            BATCHES + "every_kind_of_target",
            CONTEXT + "each_row_of_a_batch_drafts_what_it_drafts_alone",
        ),
        (BATCHES + "mutants_of_the_rows_are_caught", CONTEXT + "rows_that_share_one_length_are_caught"),
    ),
    "T-PAD": Case(
        (
            ROWS + "rows_that_nobody_uses_may_hold_anything",
            BATCHES + "a_padded_row_may_reach_past_the_contexts_end",
            CONTEXT + "rows_appended_together_with_padding_equal_rows_appended_alone",
            VERDICTS + "a_row_of_a_ragged_batch_gets_the_verdict_it_gets_alone",
        ),
        (ROWS + "a_row_that_begins_with_what_was_there_is_caught", VERDICTS + "reading_past_a_rows_length_is_seen"),
    ),
    "T-RAG": Case(
        (
            CONTEXT + "rows_that_draft_different_numbers_see_only_their_own_block",
            CONVOLUTION + "a_one_hot_row_reaches_only_the_rows_within_the_kernel_after_it",
        ),
        (
            CONTEXT + "a_short_block_that_sees_its_padding_is_caught",
            CONVOLUTION + "rows_from_over_the_edge_of_the_block_are_seen",
        ),
    ),
    "T-MAXLEN": Case(
        (
            CONTEXT_LIMIT + "a_text_ends_where_the_targets_context_does",
            CONTEXT_LIMIT + "a_drafter_with_a_shorter_context_stops_drafting_there_and_the_text_goes_on",
        ),
        (
            CONTEXT_LIMIT + "drafts_past_the_drafters_own_positions_are_caught",
            CONTEXT_LIMIT + "a_budget_that_forgets_the_targets_context_is_caught",
        ),
    ),
    "T-DEPTH": Case(
        (
            DEPTH + "block_size_one_is_off_and_says_so",
            DEPTH + "a_block_longer_than_the_checkpoints_is_refused_with_both_numbers",
            DEPTH + "a_block_of_b_rows_drafts_b_less_one",
            KEYS + "so_it_is_inside_dflash_config",
        ),
        (
            DEPTH + "another_depth_than_the_one_asked_for_is_caught",
            KEYS + "a_reader_that_knows_a_key_and_lets_any_value_pass_is_seen",
        ),
    ),
    "T-ACTIVE": Case(
        (
            HEALTH + "the_trained_drafter_is_at_work",
            HEALTH + "a_drafter_that_is_hardly_ever_right_is_told_of_once_with_the_usual_causes",
            STATISTICS + "passes_past_the_drafters_context_are_counted_with_the_reason",
            STATISTICS + "passes_with_drafts_that_are_not_finite_are_counted_with_the_reason",
        ),
        (HEALTH + "a_drafter_that_is_loaded_and_not_used_shows", HEALTH + "a_warning_that_never_comes_is_caught"),
    ),
    "T-V2KEY": Case(
        (
            CONTEXT + "weights_of_each_part_change_the_drafts",
            OPENING + "a_missing_tensor_is_named",
            OPENING + "a_surplus_tensor_is_refused_by_name_with_the_reason",
            OPENING + "both_names_of_a_tensor_load",
            KEYS + "the_second_version_never_runs_as_the_first",
        ),
        (
            CONTEXT + "a_convolution_that_is_loaded_and_not_run_is_caught",
            PARITY + "a_drafter_that_is_wrong_in_one_thing_is_told_from_the_peer",
            OPENING + "a_loader_that_lets_a_tensor_be_missing_is_seen",
            OPENING + "a_loader_that_drops_what_it_does_not_know_is_seen",
            KEYS + "a_second_version_that_runs_as_the_first_is_seen",
        ),
    ),
    "T-CFG": Case(
        (
            PLACES + "a_key_is_read_from_either_place",
            PLACES + "two_places_that_disagree_are_an_error_that_names_both",
            PLACES + "a_missing_key_is_an_error_that_names_it",
        ),
        (
            PLACES + "a_reader_that_takes_the_first_place_without_asking_the_other_is_seen",
            PLACES + "a_constant_that_stands_in_for_a_missing_key_is_seen",
        ),
    ),
    "T-ROPE": Case(
        (
            ROTARY + "frequencies_and_factor_equal_those_of_transformers",
            ROTARY + "a_rotation_equals_that_of_transformers_at_short_and_long_positions",
            PARITY + "they_are_equal_at_long_positions",
        ),
        (ROTARY + "interleaved_channels_are_caught", ROTARY + "frequencies_rounded_by_a_cast_are_caught"),
    ),
    "T-VOCAB": Case(
        (
            GREEDY + "ids_that_only_pad_the_targets_head_are_never_written",
            CONTEXT + "the_rows_of_a_padded_head_are_never_offered",
            CONTEXT + "an_own_embedding_head_or_mask_row_is_used_instead_of_the_targets",
            BORROWED + "a_tied_head_is_the_embedding_also_from_a_checkpoint_that_holds_it_once",
            OPENING + "a_surplus_tensor_is_refused_by_name_with_the_reason",  # a map of ids, of any size
            OPENING + "a_head_of_another_vocabulary_is_refused",
            LIMITS + "parts_that_do_not_fit_together_are_refused",
        ),
        (
            GREEDY + "padding_of_the_head_that_is_judged_is_caught",
            CONTEXT + "a_head_whose_padding_is_read_is_caught",
            BORROWED + "a_head_that_only_seems_tied_is_caught",
            OPENING + "a_loader_that_drops_what_it_does_not_know_is_seen",
            LIMITS + "a_law_that_nobody_keeps_is_seen",
        ),
    ),
    "T-EMB": Case(
        (
            BORROWED + "scale_and_softcap_of_a_target_are_applied_once_by_the_drafters_config",
            CONTEXT + "the_embedding_scale_applies_to_the_anchor_and_to_the_masks",
            CONTEXT + "multiplier_and_softcap_apply_to_the_logits_in_this_order",
        ),
        (
            BORROWED + "a_scale_or_a_softcap_applied_twice_is_caught",
            CONTEXT + "the_embedding_scale_applies_to_the_anchor_and_to_the_masks",
        ),
    ),
    "T-MASK": Case(
        (
            LIMITS + "a_mask_token_that_cannot_be_one_is_refused",
            PLACES + "a_missing_key_is_an_error_that_names_it",
            REFUSALS + "a_drafter_that_does_not_fit_is_refused_with_both_numbers",
            REFUSALS + "a_mask_that_is_the_tokenizers_padding_is_refused",
            GREEDY + "a_mask_that_the_target_writes_itself_stays_in_the_text",
        ),
        (
            LIMITS + "a_law_that_nobody_keeps_is_seen",
            REFUSALS + "a_drafter_of_another_width_that_would_broadcast_is_caught",
            GREEDY + "a_mask_that_is_taken_out_of_the_text_is_caught",
        ),
    ),
    "T-DTYPE": Case(
        (
            CONTEXT + "weights_that_overflow_half_precision_draft_nothing",
            CONTEXT + "a_row_with_numbers_that_are_not_finite_drafts_nothing_and_leaves_its_neighbours_alone",
            BATCHES + "a_neighbour_whose_drafter_breaks_down_drafts_nothing_and_the_others_go_on",
            LOADING + "a_weight_that_is_no_finite_number_is_refused_by_name",
            LOADING + "a_weight_that_the_dtype_asked_for_cannot_hold_is_refused_by_name",
        ),
        (
            CONTEXT + "a_drafter_that_does_not_look_for_what_is_not_finite_is_caught",
            LOADING + "weights_that_nobody_looks_at_are_caught",
        ),
    ),
    "T-QHEAD": Case(
        (
            BORROWED + "drafts_through_a_packed_head_are_those_of_the_dequantised_one",
            BORROWED + "drafts_through_a_packed_embedding_are_those_of_the_dequantised_one",
        ),
        (
            BORROWED + "a_product_with_packed_weights_is_caught",
            BORROWED + "rows_of_a_packed_embedding_that_are_not_the_raw_ones_are_caught",
        ),
    ),
    "T-QDRAFT": Case(  # refused here; engines that run such drafters have the rest of it
        (
            OPENING + "weights_that_are_no_floats_are_refused",
            KEYS + "a_key_that_asks_for_what_is_not_done_is_refused_by_name",
        ),
        (
            OPENING + "packed_weights_taken_for_numbers_are_seen",
            KEYS + "a_reader_that_knows_a_key_and_lets_any_value_pass_is_seen",
        ),
    ),
    "T-STATE": Case(
        (
            HYBRID + "the_state_is_exactly_that_of_the_committed_tokens",
            HYBRID + "the_state_is_that_of_the_committed_tokens_within_rounding",
            HYBRID + "each_row_of_a_batch_is_what_it_is_alone",
            HYBRID + "a_first_pass_is_taken_back_like_any_other",
        ),
        (
            HYBRID + "a_state_that_keeps_what_was_rejected_or_loses_what_was_accepted_is_caught",
            HYBRID + "states_of_which_no_copy_was_made_are_caught",
        ),
    ),
    "T-NUM": Case(
        (
            VERDICTS + "logits_one_ulp_apart_are_no_tie",
            VERDICTS + "a_draft_on_the_higher_of_two_tied_ids_does_not_stand",
            VERDICTS + "greedy_verdicts_are_those_of_reading_row_by_row",
            TIES + "blocks_write_the_lowest_of_tied_ids",
        ),
        (VERDICTS + "an_argmax_that_takes_the_highest_of_tied_ids_is_seen", TIES + "another_rule_for_ties_is_caught"),
    ),
    "T-TIE": Case(
        (
            SELECTOR + "candidates_are_the_best_with_ties_to_the_lowest_id_at_the_edge_too",
            SELECTOR + "the_greedy_walk_does_not_depend_on_the_candidates_order",
        ),
        (SELECTOR + "candidates_with_ties_to_the_highest_id_are_seen",),
    ),
    "T-SEL": Case(
        (
            SELECTOR + "the_greedy_walk_equals_brute_force",
            SELECTOR + "every_rank_and_every_candidate_can_decide_the_path",
            SELECTOR + "the_first_step_is_conditioned_on_the_anchor",
        ),
        (SELECTOR + "a_walk_that_leaves_something_out_is_seen",),
    ),
    "T-CONV": Case(
        (
            CONVOLUTION + "it_equals_the_formula_for_any_block_length_and_kernel",
            CONVOLUTION + "a_one_hot_row_reaches_only_the_rows_within_the_kernel_after_it",
            CONVOLUTION + "a_new_convolution_is_the_identity",
            LIMITS + "parts_that_do_not_fit_together_are_refused",
        ),
        (
            CONVOLUTION + "rows_from_over_the_edge_of_the_block_are_seen",
            LIMITS + "a_law_that_nobody_keeps_is_seen",
        ),
    ),
    "T-MEM": Case(
        (
            CONTEXT + "memory_is_bounded_by_the_window_when_every_layer_slides",
            CONTEXT + "a_huge_window_allocates_little_and_grows_with_the_text",
        ),
        (CONTEXT + "memory_that_grows_with_the_context_is_caught",),
    ),
    "T-METRIC": Case(
        (
            STATISTICS + "accepted_runs_of_3_2_1_0",
            STATISTICS + "no_grouping_changes_the_totals",
            STATISTICS + "without_drafting_there_is_no_division_by_zero",
        ),
        (
            STATISTICS + "a_mean_of_means_is_caught",
            STATISTICS + "a_mean_that_leaves_out_the_targets_own_tokens_is_caught",
        ),
    ),
    "T-CONC": Case(
        (
            WIDTH + "widths_that_change_every_cycle_change_no_id",
            WIDTH + "what_was_left_to_append_is_there_when_it_drafts_again",
            WIDTH + "the_engine_measures_and_writes_the_same",
        ),
        (
            WIDTH + "a_gate_that_leaves_rejected_ids_behind_is_caught",
            WIDTH + "plain_steps_that_the_drafter_never_sees_are_caught",
            WIDTH + "a_gate_whose_state_is_not_told_is_caught",
        ),
    ),
    "T-MODE": Case(  # no layout states a tokenizer; widths, vocabularies and the mode are told
        (
            REFUSALS + "a_drafter_that_does_not_fit_is_refused_with_both_numbers",
            HEALTH + "a_drafter_that_is_hardly_ever_right_is_told_of_once_with_the_usual_causes",
        ),
        (
            REFUSALS + "a_drafter_of_another_width_that_would_broadcast_is_caught",
            HEALTH + "a_warning_that_never_comes_is_caught",
        ),
    ),
    "T-SEC": Case(
        (
            KEYS + "a_key_that_asks_for_what_is_not_done_is_refused_by_name",
            FILES + "a_pickle_is_refused_unopened_with_the_way_to_convert_it",
            FILES + "a_shard_path_that_leaves_the_folder_or_is_no_safetensors_is_refused",
            FILES + "a_link_that_leads_out_of_the_folder_is_refused",
            LIMITS + "absurd_sizes_are_refused_without_memory",
            LIMITS + "a_block_that_is_none_is_refused",
        ),
        (
            KEYS + "a_reader_that_knows_a_key_and_lets_any_value_pass_is_seen",
            FILES + "a_pickle_that_is_opened_is_seen",
            FILES + "a_shard_path_that_is_followed_is_seen",
            FILES + "a_link_that_is_followed_anywhere_is_seen",
            LIMITS + "sizes_without_a_ceiling_are_seen",
        ),
    ),
}

ELSEWHERE = {
    "T-PREFIX": "prefix caches are the engines'",
    "T-BUDGET": "token budgets are the engines'",
    "T-ALIAS": "the adapters' names for the depth",
    "T-TP": "tensor parallelism is the engines'",
    "T-PP": "pipeline parallelism is the engines'",
    "T-MM": "images are the engines'",
    "T-LORA": "adapters on a target are the engines'",
    "T-GGUF": "gguf_export has tests of its own",
}


@pytest.mark.parametrize("name", CASES)
def test_every_test_of_a_case_exists(name: str) -> None:
    case = CASES[name]
    assert case.tests
    assert case.mutants
    gone = missing(HERE, (*case.tests, *case.mutants))
    assert not gone, f"{gone} is not there: where did the tests of {name} go?"


def test_a_test_that_went_away_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CASES, "T-TAP", Case((TAPS + "nothing",), CASES["T-TAP"].mutants))
    with pytest.raises(AssertionError, match="where did the tests of T-TAP go"):
        test_every_test_of_a_case_exists("T-TAP")


def test_a_case_stands_in_one_of_the_two_lists() -> None:
    assert not CASES.keys() & ELSEWHERE.keys()
    assert len(CASES) + len(ELSEWHERE) == 55
