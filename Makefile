# Needs what native/prerequisites.sh checks for; everything else goes into .venv and .cache.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check
NEWEST := $(shell sed -n 's/^SOURCE = ".*==\(.*\)"$$/\1/p' tools/newest.py)
PREFIX := .cache/ggml-native
# torch and transformers, which nothing else here needs.
REFERENCE := .cache/reference
# These files mark a finished build of that version.
NATIVE := $(PREFIX)/built-$(NEWEST)
PEER   := .cache/peer/built-$(NEWEST)

# The folder of llama-bench; starts are measured too where llama-completion lies beside it.
LLAMA_BENCH ?= $(if $(wildcard $(PEER)),.cache/peer/bin)

# Sources of the compiled binding; installing again compiles it again.
BINDING := setup.py native/build.py native/guards.py native/headers.py native/install.py native/shim.c

# The tests that notice most mistakes soonest: file format, text, ops, declarations, caches,
# conversion, sampling, the tokens of each architecture beside transformers', and one command.
CHECKED := $(addprefix tests/,chat/test_template.py tokenizer image gguf_file ml nn model models kvcache \
    golden/test_text.py::test_greedy_tokens convert/test_from_hf.py convert/test_write.py \
    runner/loading/test_load.py runner/sampling runner/requests/test_answers.py cli/test_run.py workbench/test_check.py)

.DEFAULT_GOAL := help
# Two pips in one environment disturb each other.
.NOTPARALLEL:
.PHONY: help demo check test test-peers test-browser mutants faults lint native peer bench clean

help:            ## print this list
	@sed -n 's/^\([a-z-]*:\).*## /  make \1 /p' Makefile

demo: $(VENV)/installed  ## let the embedded models tell a story, and say what they see
	@$(BIN)/ggmodel run examples/assets/stories.gguf "Once upon a time" --temperature 0.7 --seed 3
	@echo
	@$(BIN)/ggmodel run examples/assets/shapes.gguf "what is in the picture?" \
	    --image examples/assets/scene.png --temperature 0

# pyright takes one of two cores, pytest the other.
check: $(VENV)/developer  ## lint, types and the tests that matter most, in two minutes
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/pyright --pythonpath $(BIN)/python & types=$$!; \
	    $(BIN)/python -m pytest -q $(CHECKED); tests=$$?; wait $$types && exit $$tests

test: $(VENV)/developer $(NATIVE)  ## run all tests but the next
	@$(BIN)/python -m pytest

test-peers: $(VENV)/peers  ## compare with other projects; downloads their published vectors
	@$(BIN)/python -m pytest tests/peers

test-browser: $(VENV)/developer  ## look at pages in chromium, which must be installed
	@$(BIN)/python -m pytest tests/browser

# make mutants PACKAGE=chat [TESTS="tests/chat tests/cli/test_chat.py"] [COUNT=40] [SEED=0]
mutants: $(VENV)/mutation  ## change PACKAGE at random places: which changes do its TESTS miss?
	@$(BIN)/python tests/mutants.py --count $(or $(COUNT),40) --seed $(or $(SEED),0) \
	    "$(PACKAGE)" $(TESTS)

# make faults [FAULTS="--rule rope --file gemma3 --show"]; see python -m tests.faults --help
faults: $(REFERENCE)/installed  ## seed faults into every model file: which tools notice each?
	@$(REFERENCE)/bin/python -m tests.faults $(or $(FAULTS),--write)

lint: $(VENV)/developer  ## ruff, import-linter and pyright
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/pyright --pythonpath $(BIN)/python

native: $(VENV)/installed $(NATIVE)  ## build the newest ggml for this very machine, RPC included
	@GGMODEL_GGML=$(PREFIX) $(BIN)/python -c 'from ggmodel import native; \
	    d = native.describe(); print("ggml", d["version"], *d["backends"], *d["features"])'
	@echo "to use it:  export GGMODEL_GGML=$(CURDIR)/$(PREFIX)"

peer: $(PEER)    ## build llama.cpp's benchmarks, to compare with

ifeq ($(LLAMA_BENCH),)
bench:
	$(error say where llama-bench is: make bench LLAMA_BENCH=FOLDER (make peer builds one))
else
bench: $(VENV)/installed $(NATIVE)  ## compare with llama.cpp in two minutes, on the same ggml
	@$(BIN)/python benchmarks/compare.py --quick --again --results .cache/bench.json \
	    --peer "$(LLAMA_BENCH)" --models .cache/models \
	    --ggml "$${GGMODEL_GGML:-$(CURDIR)/$(PREFIX)}"
endif

clean:           ## remove what was built here
	rm -rf $(VENV) .cache build dist sdk/*.egg-info native/_ggml_*.so
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

$(VENV)/python: native/prerequisites.sh
	@PYTHON="$(PYTHON)" sh native/prerequisites.sh
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/installed: $(VENV)/python pyproject.toml $(BINDING)
	@echo "installing ggmodel into $(VENV)"
	@rm -f native/_ggml_*.so
	@$(PIP) install --editable .
	@touch $@

$(VENV)/developer: $(VENV)/installed
	@echo "installing what tests and linters need into $(VENV)"
	@$(PIP) install --editable ".[test,lint]"
	@touch $@

$(VENV)/peers: $(VENV)/developer
	@$(PIP) install --editable ".[peers]"
	@touch $@

$(VENV)/mutation: $(VENV)/developer
	@$(PIP) install --editable ".[mutation]"
	@touch $@

$(REFERENCE)/installed: native/prerequisites.sh pyproject.toml $(BINDING)
	@PYTHON="$(PYTHON)" sh native/prerequisites.sh
	@echo "installing torch and transformers into $(REFERENCE)"
	@$(PYTHON) -m venv --clear $(REFERENCE)
	@$(REFERENCE)/bin/python -m pip --quiet --disable-pip-version-check install --editable ".[reference]"
	@touch $@

$(VENV)/builder: $(VENV)/python
	@$(PIP) install cmake ninja
	@touch $@

# Options of one's own ask for a new build, but only a target named here says that they are meant.
ifdef CMAKE_ARGS
.PHONY: $(if $(filter native,$(MAKECMDGOALS)),$(NATIVE)) $(if $(filter peer,$(MAKECMDGOALS)),$(PEER))
endif

$(NATIVE): | $(VENV)/builder
	@echo "building the newest ggml for this machine into $(PREFIX) (two minutes on two cores)"
	@$(BIN)/python tools/newest.py ggml $(PREFIX)

$(PEER): | $(VENV)/builder
	@echo "building llama.cpp's benchmarks into .cache/peer (six minutes on two cores)"
	@$(BIN)/python tools/newest.py peer .cache/peer
