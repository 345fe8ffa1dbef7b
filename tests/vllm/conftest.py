"""vLLM really running, on the embedded pair in float32. Nothing is skipped: without the environment of `ci/vllm.sh` these fail.

An engine takes half a minute to start, so each is started once, and every test that it can serve asks it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engines.grouping import Together
from tests.engines.pair import thirty_prompts
from tests.vllm.engines import DRAFTED, NEW_TOKENS, Ran, VllmProcess

ROOMY: dict[str, Any] = {
    "max_num_seqs": 17,
    "block_size": 32,
    "enable_prefix_caching": True,
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
}


ASK_THE_SAME = {
    "test_greedy.py",
    "test_hooks.py",
    "test_limits.py",
    "test_options.py",
    "test_sampled.py",
    "test_scales.py",
    "test_start.py",
}
"""Files that ask `drafted` and `tight`; plain vLLM is started in both processes."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    return Together(config, log, ASK_THE_SAME)


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="session")
def plain(logs: Path) -> Iterator[VllmProcess]:
    """vLLM alone, the plugin off."""
    with VllmProcess(logs / "plain.log", environment={"DFLASH2_VLLM": "off"}, **ROOMY) as engine:
        yield engine


@pytest.fixture(scope="session")
def drafted(logs: Path) -> Iterator[VllmProcess]:
    """The same with the drafter; how many drafts, and how they are sampled, is left to the plugin."""
    with VllmProcess(logs / "drafted.log", speculative_config=DRAFTED, **ROOMY) as engine:
        yield engine


@pytest.fixture(scope="session")
def tight(logs: Path) -> Iterator[VllmProcess]:
    """Prompts in chunks of at most 41 - 7 ids, no prefix cache, and memory for a few texts."""
    arguments = ROOMY | {
        "enable_prefix_caching": False,
        "enable_chunked_prefill": True,
        "max_num_batched_tokens": 41,
        "num_gpu_blocks_override": 30,
    }
    with VllmProcess(logs / "tight.log", speculative_config=DRAFTED, **arguments) as engine:
        yield engine


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    return thirty_prompts()


@pytest.fixture(scope="session")
def by_plain_vllm(plain: VllmProcess, prompts: list[list[int]]) -> Ran:
    """The thirty prompts, greedily."""
    return plain.generate(prompts, temperature=0, max_tokens=NEW_TOKENS)


@contextmanager
def fault(engine: VllmProcess, name: str) -> Iterator[None]:
    """With one of `mutants.py` in the engine."""
    engine.ask("mutate", name=name)
    try:
        yield
    finally:
        engine.ask("mutate", name="sound")
