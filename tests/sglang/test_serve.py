"""`dflash2 serve --engine sglang` really serving: it runs what it prints, answers, and ends when it is told to."""

from dflash2_sglang.engine import NOTES
from tests.sglang.asking import assert_drafted
from tests.sglang.serving import Served


def test_it_runs_the_command_that_it_prints(served: Served) -> None:
    environment = [word for word in served.printed if "=" in word and not word.startswith("-")]
    assert served.ran == served.printed[len(environment) :]
    assert "--speculative-algorithm DFLASH" in " ".join(served.ran)


def test_it_says_what_to_know_of_this_engine(served: Served) -> None:
    for note in NOTES:
        assert f"dflash2: {note}" in served.log


def test_it_answers_chats_and_drafts(served: Served) -> None:
    assert served.chat["choices"][0]["message"]["content"]
    assert served.chat["usage"]["completion_tokens"] > 1
    assert_drafted(served.answers)


def test_ctrl_c_ends_it_and_all_of_sglang(served: Served) -> None:
    """One signal reaches `dflash2 serve`, which asks SGLang to end: no process of it says where it was interrupted.

    On a busy machine SGLang tells of a traceback when it starts, over a request of its own to itself that came too early.
    """
    assert served.code == 0
    assert served.left == []
    before, told, ending = served.log.partition("SIGTERM received")
    assert told, before[-1000:]
    assert "Traceback" not in ending
    assert not served.log.splitlines()[-1].startswith("dflash2:")
