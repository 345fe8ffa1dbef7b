"""What adapters share: where a program is, what its Python answers, what it counts, and the requests it is asked."""

import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dflash2_core import SamplingParams
from dflash2_core.engine_log import cause_in, told
from dflash2_core.engine_metrics import counted
from dflash2_core.engine_program import built_program, json_answer, stated_program
from dflash2_core.engines import Command, EngineOptions
from dflash2_core.errors import EngineError, SamplingError
from dflash2_core.server_process import ServerProcess, each_completion, port_of

VARIABLE = "DFLASH2_TEST_PROGRAM"
PYTHON = Path(sys.executable)
WITH_LABELS = """
e:num_drafts_total{engine="0"} 3.0
e:num_drafts_total{engine="1"} 2.0
e:num_draft_tokens_total{engine="0"} 35
e:num_accepted_tokens_total{engine="0"} 7
e:num_accepted_tokens_per_pos_total{engine="0",position="0"} 3
e:num_accepted_tokens_per_pos_total{engine="1",position="0"} 1
e:num_accepted_tokens_per_pos_total{engine="0",position="10"} 1
e:num_accepted_tokens_per_pos_total{engine="0",position="2"} 2
"""


def test_a_setting_goes_before_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert stated_program(None, VARIABLE, expected="one") is None
    monkeypatch.setenv(VARIABLE, str(PYTHON))
    assert stated_program(None, VARIABLE, expected="one") == PYTHON
    with pytest.raises(EngineError, match="which the setting names, is no program: expected one"):
        stated_program(tmp_path, VARIABLE, expected="one")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))
    with pytest.raises(EngineError, match=f"which {VARIABLE} names, is no program"):
        stated_program(None, VARIABLE, expected="one")


def test_a_program_of_this_folder_is_not_looked_for_on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "engine").symlink_to(PYTHON)
    monkeypatch.chdir(tmp_path)
    for said in ("./engine", "engine"):
        assert stated_program(Path(said), VARIABLE, expected="one") == tmp_path / "engine"


def test_what_was_built_is_found_from_the_folder_one_is_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert built_program(Path("nowhere/bin/engine")) is None
    program = tmp_path / "nowhere/bin/engine"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    assert built_program(Path("nowhere/bin/engine")) == program


def test_a_python_answers_with_its_last_line() -> None:
    answer = json_answer([str(PYTHON), "-c", "print('loading'); print('{\"a\": 1}')"], seconds=60, asked_for="it")
    assert answer == {"a": 1}


@pytest.mark.parametrize("script", ["print('no JSON')", "raise SystemExit('broken')", ""])
def test_a_python_that_answers_otherwise_is_a_sentence(script: str) -> None:
    with pytest.raises(EngineError, match="is no Python that can be asked for it"):
        json_answer([str(PYTHON), "-c", script], seconds=60, asked_for="it")


def test_counters_are_summed_over_processes_and_told_by_position_in_order() -> None:
    stats = counted(WITH_LABELS, "e:num_", name="e")
    assert (stats.num_cycles, stats.num_drafted, stats.num_accepted, stats.num_committed) == (5, 35, 7, 12)
    assert stats.accepted_per_position == [4, 2, 1]


def test_counters_without_labels_are_read_too() -> None:
    text = "e:num_drafts_total 2\ne:num_draft_tokens_total 14\ne:num_accepted_tokens_total 5\n"
    assert counted(text, "e:num_", name="e").mean_acceptance_length == 3.5


def test_a_server_that_does_not_count_is_a_sentence() -> None:
    with pytest.raises(EngineError, match="e's /metrics does not count e:num_draft_tokens_total"):
        counted("other 1\n", "e:num_", name="e")


def test_every_completion_has_the_seed_that_it_would_have_alone() -> None:
    params = [SamplingParams(temperature=1, seed=5, n=2), SamplingParams(temperature=1)]
    found = each_completion([[1], [2]], params)
    assert [(prompt, asked.seed, asked.n) for prompt, asked in found] == [([1], 5, 1), ([1], 6, 1), ([2], None, 1)]
    with pytest.raises(SamplingError, match="1 prompts came with 2 params"):
        each_completion([[1]], params)


def test_where_a_command_will_listen() -> None:
    assert port_of(Command(argv=("engine", "--port", "8123", "--more"))) == 8123


def test_where_no_server_answers_it_is_not_attached_to() -> None:
    with pytest.raises(EngineError, match="no engine answers at http://127.0.0.1:9/health"):
        ServerProcess("http://127.0.0.1:9/v1", EngineOptions(), name="engine")


OF_TWO_PROCESSES = """
(APIServer pid=1) INFO 11-30 07:56:11 [api_server.py:1] starting, errors like `OSError: [Errno 24]` may follow
(EngineCore pid=2) ERROR 11-30 07:57:59 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=2) ERROR 11-30 07:57:59 [core.py:1510]     raise ValueError(
(EngineCore pid=2) ERROR 11-30 07:57:59 [core.py:1510] ValueError: dflash2: the sizes differ: 5 and 6
(EngineCore pid=2) INFO 11-30 07:58:11 [multiproc_executor.py:479] [shutdown] all workers exited
Process EngineCore:
Traceback (most recent call last):
ValueError: dflash2: the sizes differ: 5 and 6
Traceback (most recent call last):
  File "multiprocessing/connection.py", line 383, in _recv
EOFError
    raise RuntimeError(
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
UserWarning: resource_tracker: There appear to be 1 leaked shared_memory objects
  warnings.warn("resource_tracker: ...")
"""


def test_the_log_of_several_processes_says_why_the_inner_one_ended() -> None:
    assert cause_in(OF_TWO_PROCESSES) == "ValueError: dflash2: the sizes differ: 5 and 6"
    said = told(OF_TWO_PROCESSES)
    assert said.startswith("says: ValueError: dflash2: the sizes differ: 5 and 6 | and ends with: RuntimeError: Engine core")
    assert said.count("the sizes differ") == 1


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("[2026-11-30 07:57:59 TP0] torch.OutOfMemoryError: CPU is full", "torch.OutOfMemoryError: CPU is full"),
        ("(EngineCore pid=2) AssertionError", "AssertionError"),
        ("pydantic_core._pydantic_core.ValidationError: 1 error", "pydantic_core._pydantic_core.ValidationError: 1 error"),
        ("engine.EngineDeadError: it ended. See stack trace (above) for the root cause.", None),
        ("INFO the ValueError: of a moment ago is mended", None),
    ],
)
def test_an_exception_is_known_by_the_line_that_ends_its_traceback(line: str, cause: str | None) -> None:
    assert cause_in(line) == cause


def test_a_message_of_several_lines_is_told_with_them() -> None:
    log = "pydantic_core.ValidationError: 1 error for Config\n  Value error, dflash2: 8 drafts\nFor more see\na\nb\nc\n"
    assert cause_in(log) == "pydantic_core.ValidationError: 1 error for Config\n  Value error, dflash2: 8 drafts"


def test_an_exception_among_the_last_lines_is_told_once() -> None:
    assert told("one\nValueError: short\n") == "ends with: one | ValueError: short"
    assert told("") == "ends with: nothing"


def test_a_server_that_ends_before_it_answers_says_why(tmp_path: Path) -> None:
    script = f"import sys; sys.stderr.write({OF_TWO_PROCESSES!r}); sys.exit(3)"
    command = Command(argv=(sys.executable, "-c", script))
    with pytest.raises(
        EngineError, match="(?s)engine ended with code 3 before it answered; its log .* says: ValueError: dflash2"
    ):
        ServerProcess(command, EngineOptions(log=tmp_path / "log"), name="engine")


def test_who_is_ended_while_it_asks_waits_for_no_answer() -> None:
    asked, over, late = threading.Event(), threading.Event(), threading.Event()

    class Slow(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/slow":
                asked.set()
                if not over.wait(60):
                    late.set()
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    def ended(_: int, __: Any) -> None:
        raise KeyboardInterrupt

    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        server = ServerProcess(f"http://127.0.0.1:{listening.server_port}", EngineOptions(parallel=2), name="engine")
        before = signal.signal(signal.SIGALRM, ended)

        def end() -> None:
            asked.wait(60)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

        threading.Thread(target=end, daemon=True).start()
        try:
            with pytest.raises(KeyboardInterrupt):
                server.ask_all(server.fetch, ["/slow"] * 8)
            assert asked.is_set()
            assert not late.is_set()
        finally:
            signal.signal(signal.SIGALRM, before)
            over.set()
            listening.shutdown()
