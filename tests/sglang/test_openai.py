"""The `openai` client, of the environment that `ci/sglang.sh` makes, sees the same with a drafter as without."""

from typing import Any

from tests.sglang.conftest import Told


def test_a_completion_is_that_of_plain_sglang(drafted: Told, plain: Told) -> None:
    assert drafted.client["text"] == plain.client["text"]
    assert drafted.client["completion_tokens"] == plain.client["completion_tokens"] == 64


def test_a_stream_gives_the_whole_text_in_pieces(drafted: Told) -> None:
    assert drafted.client["streamed"] == drafted.client["text"]
    assert drafted.client["num_chunks"] > 10


def test_a_stop_string_cuts_where_plain_sglang_cuts(drafted: Told, plain: Told) -> None:
    text, stop = drafted.client["text"], drafted.client["stop"]
    assert stop
    assert (
        drafted.client["stopped"] == drafted.client["stopped_streamed"] == plain.client["stopped"] == text[: text.index(stop)]
    )
    assert drafted.client["stopped_reason"] == "stop"


def test_chats_at_once_give_what_each_gives_alone(drafted: Told, plain: Told) -> None:
    def seen(answers: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
        return [(answer["text"], answer["finish_reason"], answer["completion_tokens"]) for answer in answers]

    told = [seen(side.client[way]) for side in (drafted, plain) for way in ("alone", "concurrent")]
    assert all(answers == told[0] for answers in told)
    assert len(told[0]) == 8


def test_a_streamed_chat_gives_the_whole_answer(drafted: Told) -> None:
    assert drafted.client["chat_streamed"] == drafted.client["alone"][0]["text"]


def test_a_sampled_text_comes_and_the_model_is_listed(drafted: Told) -> None:
    assert drafted.client["sampled"]
    assert drafted.client["models"] == 1
