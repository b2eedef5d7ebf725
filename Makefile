# `make` or `make help` lists the targets.

# Where cargo puts the binaries; CARGO_TARGET_DIR is honoured as by cargo itself.
TARGET ?= $(or $(CARGO_TARGET_DIR),target)

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: .venv/installed ## Install what the tests need: Envoy, kubectl and more in .venv; redis-server, h2load, promtool, chromium, curl
	@tests/install-tools

.PHONY: build
build: ## Build the binary (debug)
	cargo build

# The debug build, since `make test` needs the same one: a newcomer compiles once.
.PHONY: demo
demo: build .venv/installed ## Show cota behind a real Envoy; ONCE=1 ends after the traffic; STORE=redis or cluster
	@$(if $(filter redis cluster,$(STORE)),tests/install-tools)
	@python3 demo/demo.py --cota $(TARGET)/debug/cota --envoy .venv/bin/envoy $(if $(STORE),--store $(STORE)) $(if $(ONCE),--once)

.PHONY: test
test: setup ## Run all tests, those with the real Envoy too
	cargo test

.PHONY: check
check: setup ## Everything a change must pass: format, lints, tests, dependencies
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
	cargo test
	@if command -v cargo-deny >/dev/null; then cargo deny check; \
	else echo "cargo deny check: skipped; to have it: cargo install --locked cargo-deny"; fi

# A release build from nothing: minutes, so no part of `make test`, which does all but the compiling.
.PHONY: image-check
image-check: setup ## Follow the Dockerfile without a container engine, run the result; prints size and start time
	.venv/bin/python tests/deploy/image.py $(TARGET)/image

# Release builds; h2load comes with `make setup`. Ratios within one run, since machines differ.
.PHONY: bench
bench: setup ## Print figures: the engine alone, and what a decision costs here and in Redis beside floors
	cargo bench --bench decide
	cargo build --release --bins --examples
	python3 benches/run.py

.PHONY: clean
clean: ## Remove all that was built or fetched
	cargo clean
	rm -rf .venv

# Made again only when the requirements change.
.venv/installed: tests/requirements.txt
	@python3 -m venv .venv || { echo "python3 cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 1; }
	.venv/bin/pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	@touch $@
