# What a newcomer types is what CI runs.

.PHONY: bench

# Compares this broker with mosquitto and peers built into target/peers (benches/compare.py).
# BENCH=short takes one quick round, for CI.
bench:
	cargo build --release
	benches/peers/build target/peers
	benches/compare.py $(if $(filter short,$(BENCH)),--short)
