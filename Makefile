.PHONY: demo messages test check docs lint sanitize deny fuzz-python bench bench-all venv wheel install rust-test simd-test \
	python-test test-aarch64 test-frameworks test-engines test-schemes doc wheels check-platforms test-pythons viewer crates

VENV := .venv
PYTHON := $(VENV)/bin/python
# One interpreter for every build, so that the bindings are compiled once.
export PYO3_PYTHON := $(abspath $(PYTHON))

SOURCES := $(shell find crates python -name '*.rs' -o -name '*.py' -o -name '*.pyi' -o -name 'Cargo.toml') \
	Cargo.toml pyproject.toml

# Everything: formatting and lints, Rust tests and documentation, the wheel and its tests. The first run
# installs the formats' own libraries (torch among them) into .venv: about 2 GB, 6 GB with CUDA.
test: lint rust-test doc python-test

# First contact: an environment with NumPy alone and a build without the store clients. Nothing else is
# downloaded but the crates that the core needs.
DEMO := target/demo
demo: $(DEMO)/.built
	PYTHONPATH=$(abspath $(DEMO))/site $(DEMO)/venv/bin/python examples/demo.py

# The environment is made while the crates compile. The packages are as in python/, with the extension
# beside them: no wheel is needed.
$(DEMO)/.built: $(SOURCES)
	mkdir -p $(DEMO)
	test -x $(DEMO)/venv/bin/python || { python3 -m venv $(DEMO)/venv && $(DEMO)/venv/bin/python -m pip \
		install --quiet --disable-pip-version-check --no-compile --only-binary :all: "numpy>=1.26"; } & \
	PYO3_PYTHON=$$(command -v python3) cargo build --profile demo --package ztensor-python \
		--no-default-features --target-dir $(DEMO)/cargo && wait $$!
	rm -rf $(DEMO)/site
	mkdir -p $(DEMO)/site
	cp -r python/ztensor python/z4ai $(DEMO)/site
	cp $(DEMO)/cargo/demo/lib_native.so $(DEMO)/site/ztensor/_native.abi3.so
	touch $@

# The quick loop while working: formatting, lints, unit tests.
check: $(VENV)/.tools
	cargo fmt --all --check
	cargo clippy --workspace --lib --bins -- -D warnings
	$(VENV)/bin/ruff check .
	cargo test -q -p z4ai -p ztensor --lib

# The documentation site, in target/site, with the pages of rustdoc.
docs: $(VENV)/.tools
	test -x .venv-docs/bin/mkdocs || $(VENV)/bin/uv venv --quiet .venv-docs
	$(VENV)/bin/uv pip install --quiet --python .venv-docs/bin/python --group docs
	.venv-docs/bin/mkdocs build --quiet
	RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps --package ztensor --features ztensor/remote --package z4ai
	rm -rf target/site/rustdoc
	cp -r target/doc target/site/rustdoc

lint: $(VENV)/.tools
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo clippy -p z4ai --no-default-features -- -D warnings
	cargo clippy -p ztensor --no-default-features -- -D warnings
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(PYTHON) tests/words.py
	$(PYTHON) tests/constants.py
	$(VENV)/bin/mypy

rust-test: $(VENV)/.tools simd-test
	cargo test --workspace

# The codec's tests at every SIMD level below the machine's best one, at which all tests run anyway.
simd-test: $(VENV)/.tools
	$(PYTHON) tests/simd_levels.py

# ---- other platforms ----
# Each of these sets up a Debian in a folder (target/platforms, about 3 GB; PLATFORMS chooses another),
# with compilers, emulators and interpreters: root and debootstrap are needed, nothing is installed on
# the machine. All print a table of what ran where. They take from some minutes to an hour and more,
# and are no part of `test`.

# Linux wheels (x86-64 and AArch64, manylinux and musllinux) and the source distribution, in dist/.
wheels:
	tests/platforms/wheels.sh

# The tests of both libraries, of the command line and of the wheel for AArch64, under qemu.
test-aarch64:
	tests/platforms/aarch64.sh

# macOS by type checks, Windows by a build and its tests under Wine, WebAssembly by viewer.html.
check-platforms: $(VENV)/.installed
	status=0; for system in macos windows wasm; do tests/platforms/$$system.sh || status=1; done; exit $$status

# The wheel of dist/ with the Pythons of three Debian releases.
test-pythons:
	tests/platforms/python.sh

# target/viewer.html: opens tensor files in a browser.
viewer:
	tests/platforms/wasm.sh

# Whether each crate could be published: all but the upload, with a build of the files that it consists of.
crates:
	cargo publish --dry-run --locked --allow-dirty -p z4ai-v1 -p z4ai -p ztensor -p ztensor-cli

doc: $(VENV)/.tools
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

python-test: $(VENV)/.installed
	$(VENV)/bin/pytest

# JAX, TensorFlow, MLX and Paddle, each in an environment of its own: some gigabytes, once.
test-frameworks: $(VENV)/.installed
	$(VENV)/bin/pytest -m frameworks tests/test_frameworks.py

# Quantization libraries, each in an environment of its own with torch: 6 GB, less where files are
# linked, once.
test-schemes: $(VENV)/.installed
	$(VENV)/bin/pytest -m schemes tests/test_scheme_references.py

# vLLM, transformers, diffusers, accelerate, peft and sentence-transformers in one environment with
# torch, the oldest releases of all but vLLM in a second one: 6 GB each, less where files are linked,
# once. llama.cpp is built from source, ten minutes with two cores, once. UPDATE_DOCS=1 writes what they find into the table of docs/engines.md.
test-engines: $(VENV)/.installed
	$(VENV)/bin/pytest -m engines tests/test_engines.py

# Tests under AddressSanitizer; some tens of minutes the first time, so not a part of `test`.
sanitize: $(VENV)/.tools
	tests/sanitize.sh

# Licences, sources and bans of dependencies; `cargo deny check` also compares advisories, for which
# it needs a copy of the RustSec database (`cargo deny fetch`).
deny:
	cargo deny --offline check licenses bans sources

# The parser of checkpoint.json, a minute long.
fuzz-python: $(VENV)/.installed
	$(PYTHON) fuzz/python/checkpoint.py --seconds 60

# A few of the claims about speed, in some minutes.
bench: wheel
	$(PYTHON) benchmark/bench.py run --print-only --size 128 --dist mixed --runs 5 --warmup 1
	$(PYTHON) benchmark/bench.py run --print-only --size 128 --dist small --runs 3 --warmup 1 \
		--formats zt,safetensors --cache warm
	$(PYTHON) benchmark/bench.py codec --print-only minilm --runs 3

# All of them: an hour and more.
bench-all: wheel
	BENCH_PYTHON=$(PYTHON) cargo run --release -p ztensor-bench
	for script in python/run codec delta structure containers distributed remote zt2 identity; do \
		$(PYTHON) benchmark/$$script.py || exit 1; done
	$(PYTHON) benchmark/bench.py sweep
	$(PYTHON) benchmark/bench.py codec
	$(PYTHON) benchmark/bench.py report

# Every error message that the tests meet, in one list: to be read now and then.
messages: export ZTENSOR_MESSAGES := $(abspath target/messages.txt)
messages: $(VENV)/.installed
	rm -f $(ZTENSOR_MESSAGES)
	cargo test --quiet -p ztensor -p ztensor-cli > /dev/null
	$(VENV)/bin/pytest --quiet > /dev/null
	@$(PYTHON) tests/messages.py $(ZTENSOR_MESSAGES)

venv: $(VENV)/.tools

# What users get: an optimised wheel in dist/, installed.
wheel: $(VENV)/.tools
	$(VENV)/bin/maturin build --release --out dist
	$(VENV)/bin/uv pip install --quiet --compile-bytecode --python $(PYTHON) --reinstall-package ztensor --no-deps --find-links dist --no-index ztensor
	rm -f $(VENV)/.installed

install: $(VENV)/.installed

$(VENV)/.tools: pyproject.toml
	@echo "Installing into $(VENV): maturin, ruff, mypy, pytest, torch, transformers, onnx, h5py, keras, gguf."
	@echo "That is about 2 GB (6 GB if only torch with CUDA can be had); \`make demo\` needs none of it."
	test -x $(PYTHON) || python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet uv
# Torch without CUDA is a tenth of the size, where its index can be reached.
	$(VENV)/bin/uv pip install --quiet --compile-bytecode --python $(PYTHON) --group test --group lint maturin --torch-backend cpu 2>/dev/null \
		|| $(VENV)/bin/uv pip install --quiet --compile-bytecode --python $(PYTHON) --group test --group lint maturin
	touch $@

# Tests use the profile of `cargo test`, which keeps overflow checks and shares its products.
$(VENV)/.installed: $(VENV)/.tools $(SOURCES)
	rm -rf target/test-wheel
	$(VENV)/bin/maturin build --quiet --profile dev --out target/test-wheel
	$(VENV)/bin/uv pip install --quiet --compile-bytecode --python $(PYTHON) --reinstall-package ztensor --no-deps target/test-wheel/*.whl
	touch $@
