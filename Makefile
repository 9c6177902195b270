# What a newcomer types is what CI runs.

TARGET := $(or $(CARGO_TARGET_DIR),target)
VENV := $(TARGET)/interop-venv

.PHONY: run test test-rust test-interop lint fmt bench kill-test tools

# Starts a broker on this machine with safe defaults and a demonstration publisher.
# DEMO=0 leaves the publisher out.
run:
	@scripts/need-cargo
	cargo build --release -p fulmar
	@DEMO=$(or $(DEMO),1) scripts/run $(TARGET)/release/fulmar

# Everything: unit, property and end-to-end tests, then clients we did not write.
test: test-rust test-interop

test-rust:
	@scripts/need-cargo
	cargo test --workspace

test-interop: $(VENV)/ready
	@tests/interop/setup
	cargo build -p fulmar
	cd tests/interop && FULMAR_BIN=$(abspath $(TARGET))/debug/fulmar \
		$(abspath $(VENV))/bin/python -m unittest -v

$(VENV)/ready: tests/interop/requirements.txt
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@

# 100,000 messages at QoS 1 and at QoS 2 while the broker is killed ten times.
kill-test: $(VENV)/ready
	cargo build --release -p fulmar
	cd tests/interop && FULMAR_BIN=$(abspath $(TARGET))/release/fulmar \
		FULMAR_KILL_MESSAGES=100000 FULMAR_KILL_TIMES=10 FULMAR_PATIENCE_S=600 \
		$(abspath $(VENV))/bin/python -m unittest -v test_kill

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	@if command -v cargo-deny >/dev/null; then cargo deny check licenses bans sources; \
	else echo "cargo-deny is not installed: licences and advisories were not checked (make tools)"; fi

fmt:
	cargo fmt --all

# Compares this broker with mosquitto and peers built into target/peers (benches/compare.py).
# BENCH=short takes one quick round, for CI.
bench:
	cargo build --release
	benches/peers/build target/peers
	benches/compare.py $(if $(filter short,$(BENCH)),--short)

# Developers' tools that nothing else needs.
tools:
	cargo install --locked cargo-deny
