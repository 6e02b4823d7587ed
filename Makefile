# The two stamps set everything up: each target below asks for the one it needs.
RUN := .venv/.ready-run
DEV := .venv/.ready-dev
BIN := .venv/bin
SETUP := scripts/setup.sh scripts/common.sh pyproject.toml constraints.txt

# ARGS=--real: SmolLM2-135M-Instruct, a real pretrained model, in place of the embedded pair. It is fetched if it must be.
REAL := build/models/SmolLM2-135M-Instruct
IF_REAL = $(if $(filter --real,$(ARGS)),$(REAL))
WITH_REAL = $(patsubst --real,--model $(REAL),$(ARGS))

.DEFAULT_GOAL := help
.PHONY: help demo serve real-model test parity-real exactness faults heads ranks remote models folders schemas clients check lint types imports words proto-check docs-check collector-check components collector stack proto \
	docs accept hooks bench bench-exactness bench-grammar bench-harness bench-heads bench-http bench-layers bench-peers bench-ranks bench-records bench-remote bench-settle simulate train train-head constraints clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

demo: $(RUN) $(IF_REAL) ## see answers of the embedded pair with and without drafts (ARGS=--real: of a real model)
	@$(BIN)/draftd demo $(WITH_REAL)

serve: $(RUN) $(IF_REAL) ## serve the embedded pair (ARGS=--real, or ARGS="--model PATH --draft-model PATH")
	@$(BIN)/draftd serve $(WITH_REAL)

real-model: $(RUN) ## fetch a real pretrained model (93 MB) and convert it to mlx-lm's format, below build/models
	@$(BIN)/python -m scripts.real_model

$(REAL) $(REAL)-4bit: | $(RUN)
	@$(BIN)/python -m scripts.real_model

# A worker more than the cores of a small machine: half of the tests' time is spent waiting for daemons and windows.
# Many daemons are started: none has to compile the package anew.
test: $(DEV) components ## all tests (ARGS="-m 'not slow'" for the quick ones)
	@$(BIN)/python -m compileall -q -j 0 daemon/draftd acceptance/draftd_acceptance
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist worksteal $(ARGS)

parity-real: $(DEV) $(REAL) $(REAL)-4bit ## are a real model's texts mlx-lm's own, in every configuration? (ten minutes; ARGS="--part greedy")
	@$(BIN)/python -m tests.real $(ARGS)

exactness: $(DEV) ## does the measurement find every planted difference, and does engine.exact remove it? (fifteen minutes)
	@$(BIN)/python -m tests.exactness $(ARGS)

faults: $(DEV) ## kills, full disks, floods … under traffic, drawn from a seed (ten minutes; ARGS="--minutes 30", "--prove")
	@GRPC_VERBOSITY=NONE $(BIN)/python -m tests.faults $(ARGS)

heads: $(DEV) $(REAL) ## are draft heads read right, fed right, and does no text depend on them? (half an hour; ARGS="--only PART")
	@$(BIN)/python -m tests.heads $(ARGS)

models: $(DEV) ## every text architecture of the installed mlx-lm: served, and with its own texts (ten minutes; ARGS="--only NAME")
	@$(BIN)/python -m tests.models $(ARGS)

folders: $(DEV) ## model folders as people have them, right and faulty: served right, or refused with what to do? (a minute)
	@$(BIN)/python -m tests.folders $(ARGS)

schemas: $(DEV) ## is every answer under a JSON schema valid? 320 schemas, with drafts and without (five minutes)
	@$(BIN)/python -m tests.schemas $(ARGS)

clients: $(DEV) $(REAL) ## do the clients that people have, as openai-python and Codex, work? (five minutes; ARGS="NAME …")
	@$(BIN)/python -m tests.clients $(ARGS)

components: # what the tests of the pipeline run; what cannot be had is said, and its tests are skipped
	@sh scripts/components.sh

collector: ## an OpenTelemetry Collector for otel-collector/config.yaml: the installed one, or one built with Go
	@sh scripts/collector.sh

# exec: the program notices that make was killed by the loss of its parent.
stack: $(DEV) ## daemon, collector, Prometheus and Alertmanager without containers, in one log; Ctrl-C stops all
	@exec $(BIN)/python -m scripts.stack $(ARGS)

check: lint types imports words proto-check docs-check collector-check ## formatting, types, layers, words, contract, generated files

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/buf lint

types: $(DEV)
	$(BIN)/mypy

imports: $(DEV)
	$(BIN)/lint-imports --no-cache

words: $(DEV)
	@$(BIN)/python -m scripts.words
	@$(BIN)/python -m scripts.readability

proto-check: $(DEV)
	sh scripts/proto.sh --check

docs-check: $(DEV)
	$(BIN)/python -m scripts.pages --check
	$(BIN)/python -m dashboards.generate --check

collector-check: # where there is a collector
	@if binary=$$(sh scripts/collector.sh --find); then \
		$$binary validate --config otel-collector/config.yaml && \
		$$binary validate --config otel-collector/config.yaml --config otel-collector/without-stores.yaml && \
		$$binary validate --config otel-collector/config.yaml --config otel-collector/containers.yaml; fi

hooks: ## have git check the subjects of your commits
	git config core.hooksPath scripts/hooks

proto: $(DEV) ## generate daemon/draftd/v1 from proto/
	sh scripts/proto.sh

docs: $(DEV) ## generate docs/telemetry.md, docs/registry, docs/configuration.md, dashboards and alert rules
	$(BIN)/python -m scripts.pages
	$(BIN)/python -m dashboards.generate

accept: $(RUN) ## is this pair fit for production? Sweep, soak, quality, gate and report (about half an hour)
	@$(BIN)/draftd accept $(ARGS)

bench: $(RUN) $(IF_REAL) ## measure against mlx-lm, paired (about ten minutes; ARGS=--real, or one model: about forty)
	@$(BIN)/python -m benchmarks.run $(ARGS)

bench-exactness: $(RUN) $(IF_REAL) ## what does engine.exact cost, and what does speculation gain under it? (ten minutes)
	@$(BIN)/python -m benchmarks.exactness $(ARGS)

bench-grammar: $(RUN) $(IF_REAL) ## what does a grammar cost, and what does speculation gain under one? (about two minutes)
	@$(BIN)/python -m benchmarks.grammar $(ARGS)

bench-harness: $(RUN) $(IF_REAL) ## does the acceptance harness measure what a bare client does? (about ten minutes)
	@$(BIN)/python -m benchmarks.harness $(ARGS)

bench-heads: $(RUN) $(REAL) ## what does a draft head gain, and what does a useless one cost? (two hours; ARGS="--only PART")
	@$(BIN)/python -m benchmarks.heads $(ARGS)

bench-http: $(RUN) $(IF_REAL) ## what does HTTP cost beside gRPC? (about five minutes)
	@$(BIN)/python -m benchmarks.http $(ARGS)

bench-layers: $(RUN) ## does speculation pay beside states and windows? (about ten minutes)
	@$(BIN)/python -m benchmarks.layers $(ARGS)

bench-peers: $(RUN) $(IF_REAL) ## measure against mlx-lm's server, under load (about an hour; ARGS="--quick" to try it out)
	@$(BIN)/python -m benchmarks.peers $(ARGS)

bench-remote: $(RUN) $(IF_REAL) ## what is gained by drafting here and verifying on another machine? (about half an hour)
	@$(BIN)/python -m benchmarks.remote $(ARGS)

ranks: $(DEV) ## one target over 2 and 4 ranks of a CPU ring: is every text that of one rank? (ten minutes)
	@$(BIN)/python -m tests.ranks $(ARGS)

bench-ranks: $(RUN) ## what do several ranks gain, and over which network do they lose?
	@$(BIN)/python -m benchmarks.ranks $(ARGS)

bench-records: $(RUN) ## what does it cost to send each operation of a target as a record? (about two minutes)
	@$(BIN)/python -m benchmarks.records $(ARGS)

remote: $(DEV) ## two daemons, a bad network: is every text right? (half an hour; ARGS="faults": is any request lost?)
	@$(BIN)/python -m tests.remote $(ARGS)

bench-settle: $(RUN) $(REAL) ## how soon does the depth settle after a start on a busy machine? (about two minutes)
	@$(BIN)/python -m benchmarks.settle $(ARGS)

simulate: $(DEV) ## the fallback on a simulated clock (a minute and a half; ARGS=--plot draws its detector too)
	@$(BIN)/python -m benchmarks.simulate $(ARGS)

train: build/training/.ready ## train the embedded pair again (about an hour and a quarter)
	build/training/bin/python -m training --work build/nano --out daemon/draftd/models/nano $(ARGS)

train-head: build/training/.ready $(REAL) ## train a draft head (ARGS="--target embedded", or "--target SmolLM2-135M-Instruct")
	build/training/bin/python -m training.heads $(ARGS)

constraints: $(DEV) ## pin the newest versions of everything
	sh scripts/constraints.sh

clean: ## remove what was built and installed here
	rm -rf .venv build dist daemon/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find daemon acceptance tests training benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUN): $(SETUP)
	@sh scripts/setup.sh run
	@touch $@

$(DEV): $(SETUP)
	@sh scripts/setup.sh dev
	@touch $(RUN) $@

# PyTorch trains; the daemon never needs it, so it stays out of .venv.
build/training/.ready: $(RUN) training/requirements.txt
	$(BIN)/python -m venv build/training
	build/training/bin/python -m pip install --quiet -c constraints.txt -r training/requirements.txt -e .
	@touch $@
