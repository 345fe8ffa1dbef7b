# Everything is set up by the targets themselves; a fresh machine needs Python 3.11 and make.
PYTHON ?= python3.11
VENV := .venv
RUN := $(VENV)/bin
PROMPTS ?=
export HF_HUB_OFFLINE := 1
# Two threads at most: oversubscribed OpenMP crawls.
export OMP_NUM_THREADS ?= 2

.PHONY: demo test suites lint test-core test-gguf test-speculators test-mlx test-llama-cpp test-vllm test-sglang test-cross-engine \
	docs llama-cpp llama-cpp-released vllm sglang bench bench-core bench-llama-cpp bench-vllm bench-sglang tiny-pair clean

demo: $(VENV)/.ready
	$(RUN)/dflash2 generate --compare --dtype float32 $(PROMPTS)

# Two at a time, since an engine under test keeps one core busy; each prints when it has ended. Long ones first.
test:
	$(MAKE) --jobs=2 --output-sync=target suites

suites: lint llama-cpp vllm sglang test-core test-sglang test-vllm test-cross-engine test-llama-cpp test-gguf test-speculators test-mlx docs

test-core: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(RUN)/pytest -n auto --dist loadfile --no-loadscope-reorder tests/core tests/examples/test_without_engines.py

# llama.cpp's own converter, to compare with, comes from a registry once; nothing is built.
test-gguf: $(VENV)/.ready
	VENV=$(VENV) bash ci/llama_cpp_converter.sh
	OMP_NUM_THREADS=1 $(RUN)/pytest -n auto --dist worksteal tests/gguf

# The engines, each in an environment of its own, once. llama-server is built from a registry's sources: for tests in seven
# minutes on two cores; as it is released, which `make bench` measures, takes longer. vLLM's CPU build takes some three minutes and 3.5 GB, SGLang three minutes and 3 GB.
llama-cpp: $(VENV)/.ready
	PYTHON=$(PYTHON) OPTIMISE=-O1 bash ci/llama_cpp.sh

llama-cpp-released: $(VENV)/.ready
	PYTHON=$(PYTHON) bash ci/llama_cpp.sh

vllm: $(VENV)/.ready
	PYTHON=$(PYTHON) bash ci/vllm.sh

sglang: $(VENV)/.ready
	PYTHON=$(PYTHON) bash ci/sglang.sh

# Five to fifteen minutes each.
test-llama-cpp: llama-cpp
	OMP_NUM_THREADS=1 $(RUN)/pytest -n 2 --dist loadfile tests/llama_cpp tests/examples/test_llama_cpp.py

test-vllm: vllm
	OMP_NUM_THREADS=1 $(RUN)/pytest -n 2 --dist loadfile tests/vllm tests/examples/test_vllm.py

test-sglang: sglang
	OMP_NUM_THREADS=1 $(RUN)/pytest -n 2 --dist loadfile tests/sglang tests/examples/test_sglang.py

# One pair in every engine; writes build/cross_engine.md, which README shows.
test-cross-engine: llama-cpp vllm sglang
	OMP_NUM_THREADS=1 $(RUN)/pytest tests/cross_engine

# What `dflash2 convert` wrote is loaded by speculators itself, in an environment of its own: a minute, and one and a half GB, once.
test-speculators: $(VENV)/.ready
	PYTHON=$(PYTHON) bash ci/speculators.sh
	OMP_NUM_THREADS=1 $(RUN)/pytest tests/speculators

# The drafter's math in MLX against the core's, on a CPU too: half a minute, and 140 MB once.
test-mlx: $(VENV)/.ready
	VENV=$(VENV) bash ci/mlx.sh
	OMP_NUM_THREADS=1 .venvs/mlx/bin/python -m pytest tests/mlx

# The documentation as a site in build/docs: half a minute, and 170 MB once.
docs:
	PYTHON=$(PYTHON) bash ci/docs.sh

lint: $(VENV)/.ready
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

# The embedded pair in every engine, one thread each: build/bench.html and build/bench.png.
bench: llama-cpp-released vllm sglang
	mkdir -p build
	OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind LLAMA_ARG_THREADS=1 $(RUN)/dflash2 bench --html build/bench.html --png build/bench.png

# Some twenty minutes on two idle cores; needs a C++ compiler.
bench-core: $(VENV)/.ready
	$(RUN)/python -m bench.core

# Some minutes each.
bench-llama-cpp: llama-cpp-released
	$(RUN)/python -m bench.llama_cpp

bench-vllm: vllm
	OMP_NUM_THREADS=1 $(RUN)/python -m bench.vllm

bench-sglang: sglang
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
