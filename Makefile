PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
TOOLS := $(VENV)/installed-dev
ENGINE := $(VENV)/installed-alfworld
READER := $(VENV)/installed-gguf
VERIFIERS := $(VENV)/installed-verifiers
JOBS ?= 2
DEMO_RUNS := runs/safe-nano runs/safe-nano_no_reflection

export HF_HUB_DISABLE_TELEMETRY := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: help install demo demo-real check test test-other-rounding test-vllm test-wheel lint engine docs clean

help:
	@echo "make install   a virtual environment in $(VENV), with the versions of constraints.txt"
	@echo "make demo      train two tiny players to open a safe, and compare them with one (minutes, CPU)"
	@echo "make demo-real train a pretrained model, SmolLM2-135M out of a Python package, on the number line (20 minutes, CPU)"
	@echo "make check     lint, types and the tests that are not slow (two minutes on two cores)"
	@echo "make test      lint, types and all tests; compiles ALFWorld's engine and installs verifiers first (g++, minutes)"
	@echo "make test-other-rounding   the numerical tests again, rounded as on an old processor (minutes)"
	@echo "make test-vllm compare a served reflector with a local one, on a real vLLM (3 GB to install; minutes)"
	@echo "make test-wheel install the wheel in a new environment, and run a recipe there (3 GB, minutes)"
	@echo "make lint      ruff and mypy only"
	@echo "make docs      the documentation as a site, in build/site/"
	@echo "make clean     remove $(VENV) and caches, not runs/"

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(TOOLS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

# Compiling takes minutes and calls a program named python, which some systems only have in $(BIN).
engine: $(ENGINE)

$(ENGINE): $(TOOLS)
	@command -v g++ >/dev/null || { echo "g++ is missing, which ALFWorld's engine is compiled with: run apt-get install build-essential" >&2; exit 1; }
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[alfworld]"
	touch $@

# 60 packages, which only its own tests import.
$(VERIFIERS): $(TOOLS)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[verifiers]"
	touch $@

# Both arms run at the same time, one core each; the one without reflection writes to a log.
demo: export HF_HUB_OFFLINE := 1
demo: export OMP_NUM_THREADS := 1
demo: $(INSTALLED)
	mkdir -p runs
	$(BIN)/reflectrl run --recipe safe/nano_no_reflection >runs/no_reflection.log 2>&1 & \
	beside=$$!; trap 'kill $$beside 2>/dev/null' INT TERM; \
	$(BIN)/reflectrl run --recipe safe/nano && wait $$beside || { cat runs/no_reflection.log; exit 1; }
	$(BIN)/reflectrl report $(DEMO_RUNS) --episode

$(READER): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[gguf]"
	touch $@

# One core: a second thread costs more than it gains if another process runs at the same time.
demo-real: export OMP_NUM_THREADS := 1
demo-real: $(READER)
	$(BIN)/reflectrl run --recipe smollm2/number_line
	$(BIN)/reflectrl report runs/smollm2-number_line --episode

lint: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check test: export HF_HUB_OFFLINE := 1
check test: export OMP_NUM_THREADS := 1
check: lint
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m "not slow"

test: lint $(ENGINE) $(VERIFIERS)
	$(BIN)/pytest -n $(JOBS) --dist worksteal

# Kernels without vector instructions add in another order: no test may depend on the last bits.
test-other-rounding: export ATEN_CPU_CAPABILITY := default
test-other-rounding: export MKL_ENABLE_INSTRUCTIONS := SSE4_2
# oneDNN too: it would announce AMX, and torch would call its own avx512 kernels, which this setting turns off.
test-other-rounding: export ONEDNN_MAX_CPU_ISA := SSE41
test-other-rounding: export HF_HUB_OFFLINE := 1
test-other-rounding: export OMP_NUM_THREADS := 1
test-other-rounding: $(TOOLS)
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m numerical

# vLLM cannot share an environment with this library. Its wheel for CPUs downloads 1 GB; the environment stays in build/.
build/vllm/installed: tests/vllm_server/install.sh
	rm -rf build/vllm
	sh tests/vllm_server/install.sh build/vllm
	touch $@

test-vllm: export HF_HUB_OFFLINE := 1
test-vllm: export OMP_NUM_THREADS := 1
test-vllm: export REFLECTRL_VLLM := $(CURDIR)/build/vllm
test-vllm: $(TOOLS) build/vllm/installed
	$(BIN)/pytest -s tests/vllm_server/equality.py

test-wheel: $(TOOLS)
	$(BIN)/pytest tests/fresh_install.py

docs: $(TOOLS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file docs/site/mkdocs.yml

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
