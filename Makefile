# Needs what native/prerequisites.sh checks for; everything else goes into .venv and .cache.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check
GGML   := $(shell sed -n 's/^ *"\(libggml-python==[^"]*\)",$$/\1/p' pyproject.toml)
PREFIX := .cache/ggml-native
# The sign that the build below $(PREFIX) is finished and of that version.
NATIVE := $(PREFIX)/built-$(lastword $(subst =, ,$(GGML)))

# Whatever shapes the compiled binding; installing again compiles it again.
BINDING := setup.py native/build.py native/guards.py native/headers.py native/install.py native/shim.c

.DEFAULT_GOAL := help
.PHONY: help demo test test-peers lint native clean

help:            ## print this list
	@sed -n 's/^\([a-z-]*:\).*## /  make \1 /p' Makefile

demo: $(VENV)/installed  ## let the embedded models tell a story, and say what they see
	@$(BIN)/ggmodel run examples/assets/stories.gguf "Once upon a time" --temperature 0.7 --seed 3
	@echo
	@$(BIN)/ggmodel run examples/assets/shapes.gguf "what is in the picture?" \
	    --image examples/assets/scene.png --temperature 0

test: $(VENV)/developer $(NATIVE)  ## run all tests but the next
	@$(BIN)/python -m pytest

test-peers: $(VENV)/developer  ## compare with other projects; downloads their published vectors
	@$(BIN)/python -m pytest tests/peers

lint: $(VENV)/developer  ## ruff and pyright
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/pyright --pythonpath $(BIN)/python

native: $(VENV)/installed $(NATIVE)  ## build ggml for this very machine, RPC included
	@GGMODEL_GGML=$(PREFIX)/libggml $(BIN)/python -c 'from ggmodel import native; \
	    d = native.describe(); print("ggml", d["version"], *d["backends"], *d["features"])'
	@echo "to use it:  export GGMODEL_GGML=$(CURDIR)/$(PREFIX)/libggml"

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

# Options of one's own ask for a new build, but only `make native` says that they are meant.
ifneq ($(and $(CMAKE_ARGS),$(filter native,$(MAKECMDGOALS))),)
.PHONY: $(NATIVE)
endif

$(NATIVE): | $(VENV)/python
	@echo "building $(GGML) for this machine into $(PREFIX) (about a minute on two cores)"
	@rm -rf $(PREFIX)
	@CMAKE_ARGS="-DGGML_NATIVE=ON -DGGML_RPC=ON $(CMAKE_ARGS)" $(PIP) install --target $(PREFIX) \
	    --no-cache-dir --no-binary libggml-python --force-reinstall --no-deps "$(GGML)"
	@touch $@
