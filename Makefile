# What a newcomer types is what CI runs. `make` alone lists the targets.

TARGET := $(or $(CARGO_TARGET_DIR),target)
# Where tests/interop/setup puts Go if this machine has none, or an old one.
export PATH := $(abspath $(TARGET))/interop-go/go/bin:$(PATH)
# The program that tests run.
FULMAR := $(abspath $(TARGET))/debug/fulmar
# What the interoperability tests are run with.
VENV := $(TARGET)/interop-venv
# What packages are compiled and packed with, and for which machines (make dist TARGETS=x86_64).
DIST_VENV := $(TARGET)/dist-venv
TARGETS ?= x86_64 aarch64 armv7
# What the documentation becomes a site with.
SITE_VENV := $(TARGET)/site-venv
NODE := tests/interop/node
BROWSER := tests/browser
QUIC_GO := $(TARGET)/interop-quic-go
# libfulmar of the tests' profile, and the client for Go on it.
LIBRARY := $(abspath $(TARGET))/interop-libfulmar
AGENT_GO := $(TARGET)/interop-agent-go
JAVA := $(TARGET)/interop-java
SOAK_GO := $(TARGET)/interop-soak-go
PEBBLE := $(TARGET)/interop-pebble
HOME_ASSISTANT := $(TARGET)/interop-home-assistant
# helm and kubectl, of a package of 37 MB that has them for x86-64 only.
HELM := $(TARGET)/interop-helm
# The OpenTelemetry Collector's receiver.
COLLECTOR := $(TARGET)/interop-collector
# The microcontrollers' client as a program, and a server for it.
TINY := $(TARGET)/debug/examples/udp
TINY_QUIC_GO := $(TARGET)/interop-tiny-quic-go
# The web app's sources, whose build goes into the program.
WEB_SOURCES := $(wildcard web/*.html web/*.json web/*.ts web/scripts/*) $(shell find web/src web/public -type f)
# make run: 0 starts the broker without the demonstration publisher.
DEMO ?= 1
# make test-interop: modules and tests to run, such as test_migration; all unless named.
TESTS ?=
# make studies: which experiments of docs/studies, and whether in their short form; all and in full unless given.
STUDIES ?=
STUDIES_SHORT ?=
# make bench: full (every peer, three rounds) or short (one quick round).
BENCH ?= full
# make firmware-run: what is in the image; with ed25519,dhcp it asks for its address.
FEATURES ?= ed25519
# make attack: seconds for each attack, and which; all unless named, a part of the name each, with semicolons between.
ATTACK_SECONDS ?= 60
ATTACKS ?=
# make soak: how often the broker loses its power.
KILLS ?= 1000
# make fuzz: seconds for each target, and which targets; all unless named. FUZZ_TOTAL: CPU-seconds over all runs instead.
FUZZ_SECONDS ?= 600
FUZZ_TOTAL ?=
FUZZ ?=

# make simulate: how long to play, from which seed on and how many schedules at most (no bound unless given); or
# the one seed to play again, with its steps per schedule.
SECONDS ?= 60
FROM ?= 0
SCHEDULES ?=
SEED ?=
STEPS ?= 400
# 1: over the real store, on a disk in memory that fails, instead of the simulated one.
STORE ?=
# 1: readings from devices through a gateway to the platform.
READINGS ?=
# 1: three nodes of a cluster, of which one serves.
CLUSTER ?=

.DEFAULT_GOAL := help
.PHONY: help run gateway web test test-web test-rust test-postgres test-nats built built-tiny interop-built test-interop test-browser screenshots kill-test identity-test gateway-kill-test gateway-memory-test attack fuzz lint fmt doc bench bench-packaged bench-parts \
	reference site tools needs interop-needs web-needs firmware firmware-run firmware-test

help: ## List the targets
	@echo "Fulmar, a QUIC-first MQTT broker. Start with README.md."
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | \
		while IFS='|' read -r name text; do printf '  make %-13s %s\n' "$$name" "$$text"; done

run: needs ## Start a broker on this machine with a demonstration publisher (DEMO=0: without)
	@if tests/interop/setup web; then $(MAKE) --no-print-directory web; else echo "Building without the web app."; fi
	cargo build --profile quick --locked --package fulmar
	@DEMO=$(DEMO) exec scripts/run $(TARGET)/quick/fulmar

# A gateway is small rather than fast: these are optimised for speed in a broker's release.
SMALL := fulmar-broker fulmar-client fulmar-coap fulmar-gateway fulmar-mqttsn fulmar-store fulmar-transport fulmar-wmbus \
	crypto-bigint curve25519-dalek ecdsa elliptic-curve h2 hashbrown hyper libsqlite3-sys p256 primeorder quinn \
	quinn-proto rusqlite rustls tokio tungstenite zlib-rs
# Relocations in a sixteenth of the space (0.4 MB less). Programs with it need a C library that knows it: glibc 2.36.
PACKED := $(shell getconf GNU_LIBC_VERSION 2>/dev/null | \
	awk '{ split($$2, v, "."); if (v[1] > 2 || v[2] >= 36) print "-C link-arg=-Wl,-z,pack-relative-relocs" }')

# The folder is its own: the two programs have one name.
gateway: needs ## Build a small program with the broker and gateway only: target/gateway/release/fulmar
	cargo rustc --release --locked --package fulmar --bin fulmar --no-default-features --features gateway \
		--target-dir $(TARGET)/gateway $(foreach crate,$(SMALL),--config profile.release.package.$(crate).opt-level=\"s\") \
		-- $(PACKED)

# For C: a fault becomes an error of the call, which `panic = "abort"` would not let it.
PREFIX ?= $(abspath $(TARGET))/libfulmar
.PHONY: libfulmar libfulmar-files
libfulmar: needs ## Build the client library for C and other languages in target/libfulmar (PREFIX=/usr/local: there)
	cargo rustc --profile library --locked --package fulmar-ffi --crate-type cdylib -- -C link-arg=-Wl,-soname,libfulmar.so.0
	cargo rustc --profile library --locked --package fulmar-ffi --crate-type staticlib
	$(MAKE) --no-print-directory libfulmar-files BUILT=$(TARGET)/library

# The files of a library that is built in the folder BUILT.
libfulmar-files:
	install -d $(PREFIX)/lib/pkgconfig $(PREFIX)/include $(PREFIX)/python
	install -m 755 $(BUILT)/libfulmar.so $(PREFIX)/lib/libfulmar.so.0
	ln -sf libfulmar.so.0 $(PREFIX)/lib/libfulmar.so
	install -m 644 $(BUILT)/libfulmar.a $(PREFIX)/lib/
	install -m 644 crates/ffi/include/fulmar.h $(PREFIX)/include/
	sed 's|@PREFIX@|$(abspath $(PREFIX))|' crates/ffi/libfulmar.pc.in > $(PREFIX)/lib/pkgconfig/libfulmar.pc
	cp -R clients/python/. $(PREFIX)/python/
	install -m 755 $(BUILT)/libfulmar.so $(PREFIX)/python/fulmar_client/

$(DIST_VENV)/ready: scripts/dist/requirements.txt
	python3 -m venv $(DIST_VENV)
	$(DIST_VENV)/bin/pip install --quiet --disable-pip-version-check --only-binary :all: -r $<
	touch $@

DIST := $(abspath $(TARGET))/dist
PROGRAMS := $(abspath $(TARGET))/dist-programs
# With zig and cargo-zigbuild; the second is found as `cargo zigbuild`.
DIST_ENV = PATH="$(abspath $(DIST_VENV))/bin:$$PATH" CARGO_TARGET_DIR=$(abspath $(TARGET)) SMALL="$(SMALL)"
.PHONY: dist dist-twice dist-test dist-test-short
dist: needs web $(DIST_VENV)/ready ## Make packages, wheels and images in target/dist (TARGETS="x86_64 aarch64 armv7")
	@scripts/dist/needs $(TARGETS)
	rm -rf $(DIST) $(PROGRAMS)
	$(DIST_ENV) scripts/dist/compile $(PROGRAMS) $(TARGETS)
	$(DIST_ENV) python3 scripts/dist/pack.py $(PROGRAMS) $(DIST) $(TARGETS)

dist-twice: $(DIST_VENV)/ready ## Make the gateway's x86_64 packages in two folders, and compare them byte by byte
	@scripts/dist/needs x86_64
	$(DIST_ENV) scripts/dist/twice $(TARGET)/dist-twice

dist-test: $(DIST_VENV)/ready ## Install what `make dist` has made on bare systems, and use it
	@tests/interop/setup dist
	mkdir -p $(TARGET)/dist-roots
	cd tests/dist && FULMAR_DIST=$(DIST) FULMAR_PROGRAMS=$(PROGRAMS) FULMAR_ROOTS=$(abspath $(TARGET))/dist-roots \
		$(abspath $(DIST_VENV))/bin/python -m unittest -v

# No release is compiled, and Debian's root is a view of this machine's.
dist-test-short: interop-needs built ## The same for a .deb and an image of the tests' program
	rm -rf $(DIST)-short $(PROGRAMS)-short
	install -D -s $(FULMAR) $(PROGRAMS)-short/x86_64/full/fulmar
	DIST_LEVEL=1 $(DIST_ENV) python3 scripts/dist/pack.py $(PROGRAMS)-short $(DIST)-short x86_64 --formats deb,wheel
	cd tests/dist && DIST_LEVEL=1 FULMAR_DIST=$(DIST)-short FULMAR_PROGRAMS=$(PROGRAMS)-short \
		python3 -m unittest -v test_packages.Deb test_packages.Wheel test_packages.Sums test_release

web: web/dist/index.html ## Build the web app, for the next build of the program

web/dist/index.html: web/node_modules/ready $(WEB_SOURCES)
	cd web && npm run --silent build

web/node_modules/ready: web/package-lock.json | web-needs
	cd web && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	touch $@

test: interop-needs web test-web test-rust test-postgres test-nats test-interop test-browser ## Run every test, including those with third-party clients

test-rust: built ## Run the tests that need only Rust
	@status=0; \
	(cd firmware && CARGO_TARGET_DIR=$(abspath $(TARGET)) cargo test --workspace --locked --no-fail-fast) || status=1; \
	cargo test --workspace --locked --no-fail-fast --doc || status=1; \
	FULMAR_BIN=$(FULMAR) scripts/test-programs --workspace --locked || status=1; \
	exit $$status

# Of the whole workspace, so that nothing is compiled again for it; no other crate has tests of these names.
test-postgres: interop-needs built ## Run the platform's tests on a PostgreSQL server of their own
	tests/interop/postgres.py cargo test --workspace --locked --no-fail-fast --test accounts --test alerts \
		--test corrections --test document --test exchanges --test field --test homes --test postgres --test radio \
		--test removed_sensors --test reports

# Of the whole workspace, as above; without the server's program these tests do nothing.
test-nats: built $(VENV)/ready ## Run the cluster's tests on NATS servers of their own
	FULMAR_NATS_SERVER=$(abspath $(VENV))/bin/nats-server cargo test --workspace --locked --test jetstream

test-web: web/node_modules/ready ## Run the web app's tests that need no browser, and its linters
	cd web && npm run --silent check && npm run --silent test

# The program and the tests in one go: cargo would compile dependencies again for the program alone,
# whose features are fewer.
built: needs
	cargo build --workspace --all-targets --locked

# As `cargo test --workspace` builds it, or dependencies would be compiled again.
built-tiny: needs
	cd firmware && CARGO_TARGET_DIR=$(abspath $(TARGET)) cargo build --workspace --examples --locked

# What third-party clients are built and installed from.
interop-built: interop-needs $(VENV)/ready $(NODE)/node_modules/ready $(QUIC_GO) $(SOAK_GO) $(TINY_QUIC_GO) $(PEBBLE)/pebble $(COLLECTOR) $(HOME_ASSISTANT)/ready $(AGENT_GO) $(BROWSER)/node_modules/ready $(JAVA)/ready $(HELM)/ready

test-interop: interop-built built built-tiny ## Run the tests with third-party clients
	cd tests/interop && FULMAR_BIN=$(FULMAR) \
		FULMAR_QUIC_GO=$(abspath $(QUIC_GO)) FULMAR_SOAK_GO=$(abspath $(SOAK_GO)) FULMAR_PEBBLE=$(abspath $(PEBBLE)) \
		FULMAR_AGENT_GO=$(abspath $(AGENT_GO)) FULMAR_JAVA=$(abspath $(JAVA)) \
		FULMAR_COLLECTOR=$(abspath $(COLLECTOR)) FULMAR_HELM=$(abspath $(HELM)) FULMAR_HOME_ASSISTANT=$(abspath $(HOME_ASSISTANT))/bin/python \
		FULMAR_TINY=$(abspath $(TINY)) FULMAR_TINY_QUIC_GO=$(abspath $(TINY_QUIC_GO)) \
		$(abspath $(VENV))/bin/python run.py $(TESTS)

test-browser: interop-needs web built $(BROWSER)/node_modules/ready ## Run the tests with Debian's Chromium
	cd web && npm run --silent test:browser
	cd $(BROWSER) && FULMAR_BIN=$(FULMAR) node --test --test-concurrency=1 --test-reporter=spec

SHOTS := $(abspath $(TARGET))/screenshots
screenshots: interop-needs web built $(BROWSER)/node_modules/ready ## Take the pictures of the documentation in the browser tests
	mkdir -p $(SHOTS)
	cd web && node tests/browser/run.mjs --shots $(SHOTS)
	cd $(BROWSER) && FULMAR_BIN=$(FULMAR) FULMAR_SCREENSHOTS=$(SHOTS) FULMAR_OUTAGE_S=150 \
		node --test --test-concurrency=1 --test-reporter=spec meters.test.mjs homes.test.mjs
	for picture in docs/images/*.png; do cp $(SHOTS)/$${picture##*/} docs/images/; done

$(VENV)/ready: tests/interop/requirements.txt | interop-needs
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@

# Later versions need a later Python than Debian 12 has, and this one that one: elsewhere, its tests are skipped.
$(HOME_ASSISTANT)/ready: tests/interop/home_assistant/requirements.txt | interop-needs
	mkdir -p $(@D)
	if python3 -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then python3 -m venv $(@D) && \
		$(@D)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-compile -r $<; fi
	touch $@

$(NODE)/node_modules/ready: $(NODE)/package-lock.json | interop-needs
	cd $(NODE) && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	touch $@

$(BROWSER)/node_modules/ready: $(BROWSER)/package-lock.json | interop-needs
	cd $(BROWSER) && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	touch $@

$(JAVA)/ready: clients/java/pom.xml $(shell find clients/java/src -type f) | interop-needs built
	mvn -B -q -f clients/java package -Dfulmar.library=$(dir $(FULMAR)) -DbuildDirectory=$(abspath $(JAVA))
	touch $@

$(AGENT_GO): $(wildcard clients/go/*.* tests/interop/agents/go/*) crates/ffi/include/fulmar.h | interop-needs built
	$(MAKE) --no-print-directory libfulmar-files BUILT=$(dir $(FULMAR)) PREFIX=$(LIBRARY)
	cd tests/interop/agents/go && PKG_CONFIG_PATH=$(LIBRARY)/lib/pkgconfig go build -race -o $(abspath $@) .

$(QUIC_GO): $(wildcard tests/interop/go/* clients/go/quicconn/*) | interop-needs
	mkdir -p $(@D)
	cd tests/interop/go && go test -c -o $(abspath $@) .

$(SOAK_GO): $(wildcard tests/interop/go/soak/* tests/interop/go/go.*) | interop-needs
	mkdir -p $(@D)
	cd tests/interop/go && go build -o $(abspath $@) ./soak

$(TINY_QUIC_GO): $(wildcard tests/interop/go/tiny/* tests/interop/go/go.*) | interop-needs
	mkdir -p $(@D)
	cd tests/interop/go && go build -o $(abspath $@) ./tiny

$(PEBBLE)/pebble: $(wildcard tests/interop/pebble/*) | interop-needs
	mkdir -p $(@D)
	cd tests/interop/pebble && go build -o $(abspath $(@D))/ \
		github.com/letsencrypt/pebble/v2/cmd/pebble github.com/letsencrypt/pebble/v2/cmd/pebble-challtestsrv
	touch $@

# Elsewhere, tests that need them are skipped.
$(HELM)/ready: tests/interop/helm.sha512 | interop-needs
	mkdir -p $(@D)
	if [ "$$(uname -m)" = x86_64 ]; then tests/interop/get_helm $(@D); fi
	touch $@

$(COLLECTOR): $(wildcard tests/interop/collector/*) | interop-needs
	mkdir -p $(@D)
	cd tests/interop/collector && go build -o $(abspath $@) .

interop-needs:
	@tests/interop/setup

web-needs:
	@tests/interop/setup web

firmware: needs ## Build the microcontroller's program; flash and RAM by part, within their budget
	FEATURES=$(FEATURES) scripts/firmware build

firmware-run: needs ## Boot it in QEMU beside a broker on this machine (FEATURES=ed25519,dhcp)
	@firmware/tools/setup
	cargo build --profile quick --locked --package fulmar
	image=$$(FEATURES=$(FEATURES) scripts/firmware image) && \
		exec python3 firmware/tools/run.py $(abspath $(TARGET))/quick/fulmar $$image $(FEATURES)

firmware-test: interop-needs built $(VENV)/ready ## Test it in QEMU at length: 100 connections through a lossy link
	cd tests/interop && FULMAR_BIN=$(FULMAR) FULMAR_FIRMWARE_CONNECTIONS=100 FULMAR_PATIENCE_S=600 \
		$(abspath $(VENV))/bin/python run.py test_firmware

kill-test: needs $(VENV)/ready ## Kill the broker ten times during 100,000 QoS 1 and QoS 2 messages
	cargo build --release --locked --package fulmar
	cd tests/interop && FULMAR_BIN=$(abspath $(TARGET))/release/fulmar \
		FULMAR_KILL_MESSAGES=100000 FULMAR_KILL_TIMES=10 FULMAR_PATIENCE_S=600 \
		$(abspath $(VENV))/bin/python run.py test_kill

# Another program than this one's: FULMAR_BIN.
.PHONY: soak soak-short
soak-short: built ## The same 20 times with the program of the tests
	$(MAKE) soak KILLS=20 FULMAR_BIN=$(FULMAR)

soak: interop-needs $(VENV)/ready $(SOAK_GO) ## Cut the power of a broker under load 1,000 times, losing what is not synced (KILLS=)
	$(if $(FULMAR_BIN),,cargo build --release --locked --package fulmar)
	cd tests/interop && FULMAR_BIN=$(or $(FULMAR_BIN),$(abspath $(TARGET))/release/fulmar) \
		FULMAR_SOAK_GO=$(abspath $(SOAK_GO)) FULMAR_SOAK_KILLS=$(KILLS) FULMAR_PATIENCE_S=600 \
		$(abspath $(VENV))/bin/python -u -m unittest -v power_cuts

identity-test: built ## Kill a broker 50 times during changes of users; change a rule for 10,000 connected clients
	ulimit -Sn $$(ulimit -Hn) && FULMAR_BIN=$(FULMAR) FULMAR_KILLS=50 FULMAR_CLIENTS=10000 \
		cargo test --workspace --locked --test dynamic_security -- --nocapture --test-threads 1

gateway-kill-test: needs $(VENV)/ready ## Kill a gateway twenty times during 50,000 readings
	cargo build --release --locked --package fulmar
	cd tests/interop && FULMAR_BIN=$(abspath $(TARGET))/release/fulmar \
		FULMAR_GATEWAY_READINGS=50000 FULMAR_GATEWAY_KILLS=20 FULMAR_PATIENCE_S=600 \
		$(abspath $(VENV))/bin/python run.py test_gateway.Gateway.test_power_cuts \
		test_gateway.Storage.test_power_cuts

# NanoMQ takes part if it is in the path.
.PHONY: bridge-kill-test
bridge-kill-test: interop-needs $(VENV)/ready ## Kill Fulmar's gateway, mosquitto's bridge and NanoMQ's, and count what each loses
	$(if $(FULMAR_BIN),,cargo build --release --locked --package fulmar)
	cd tests/interop && FULMAR_BIN=$(or $(FULMAR_BIN),$(abspath $(TARGET))/release/fulmar) \
		$(abspath $(VENV))/bin/python -u bridge_kill.py

.PHONY: ledger-kill-test
ledger-kill-test: interop-needs $(VENV)/ready ## Kill gateway, broker and PostgreSQL and cut the link during 50,000 readings, each of which is a row once
	$(if $(FULMAR_BIN),,cargo build --release --locked --package fulmar)
	cd tests/interop && FULMAR_BIN=$(or $(FULMAR_BIN),$(abspath $(TARGET))/release/fulmar) \
		FULMAR_LEDGER_READINGS=50000 FULMAR_LEDGER_FAULTS=36 FULMAR_PATIENCE_S=600 \
		$(abspath $(VENV))/bin/python run.py test_sinks.Sinks.test_readings_of_a_gateway_are_there_once_and_in_order

.PHONY: cluster-kill-test
cluster-kill-test: interop-needs $(VENV)/ready $(SOAK_GO) ## Kill and pause nodes of a cluster and NATS servers, cut their networks and more, at length and under load
	$(if $(FULMAR_BIN),,cargo build --release --locked --package fulmar)
	cd tests/interop && FULMAR_BIN=$(or $(FULMAR_BIN),$(abspath $(TARGET))/release/fulmar) \
		FULMAR_SOAK_GO=$(abspath $(SOAK_GO)) FULMAR_CLUSTER_MESSAGES=50000 FULMAR_CLUSTER_ROUNDS=4 \
		FULMAR_CLUSTER_DRAINS=20 $(abspath $(VENV))/bin/python -u -m unittest -v test_cluster_kill

gateway-memory-test: gateway $(VENV)/ready ## Check that a gateway with 10,000 queued readings has less than 20 MiB resident
	cd tests/interop && FULMAR_BIN=$(abspath $(TARGET))/gateway/release/fulmar FULMAR_GATEWAY_RESIDENT_MIB=20 \
		$(abspath $(VENV))/bin/python run.py \
		test_gateway.Gateway.test_ten_thousand_queued_readings_take_little_memory

# With the program of the tests; judges losses and memory, not time.
.PHONY: attack-short
attack-short: built $(VENV)/ready ## A few of the attacks, 3 s each
	FULMAR_BIN=$(FULMAR) ATTACK_SHORT=1 ATTACK_SECONDS=3 ATTACK_BUDGET=512MB $(abspath $(VENV))/bin/python tests/attack/run.py

# Another program than this one's, to compare: FULMAR_BIN. With a budget, such as ATTACK_BUDGET=512MB, it is judged too.
attack: needs $(VENV)/ready ## Attack the broker while honest clients use it (ATTACK_SECONDS=60, ATTACKS="DTLS;bodies")
	$(if $(FULMAR_BIN),,cargo build --release --locked --package fulmar)
	FULMAR_BIN=$(or $(FULMAR_BIN),$(abspath $(TARGET))/release/fulmar) \
		ATTACK_SECONDS=$(ATTACK_SECONDS) ATTACKS="$(ATTACKS)" $(abspath $(VENV))/bin/python tests/attack/run.py

fuzz: needs ## Fuzz every target for FUZZ_SECONDS (FUZZ="TARGET...": only these)
	FUZZ_SECONDS=$(FUZZ_SECONDS) FUZZ_TOTAL=$(FUZZ_TOTAL) scripts/fuzz $(FUZZ)

# Many schedules in little time, with the assertions of the core. Of the whole workspace and with a test, so that
# dependencies have the features they have for tests, and are shared with them: cargo compiles these crates alone.
.PHONY: simulate
simulate: needs ## Run broker and storage through random schedules of faults (SECONDS=, FROM=; SEED= repeats one; STORE=1: the real store; READINGS=1: from devices through a gateway to the platform; CLUSTER=1: three nodes and their log)
	cargo build --workspace --locked --bin fulmar-simulator --test schedules
	env SECONDS=$(SECONDS) FROM=$(FROM) $(if $(SCHEDULES),SCHEDULES=$(SCHEDULES)) $(if $(SEED),SEED=$(SEED)) STEPS=$(STEPS) \
		$(TARGET)/debug/fulmar-simulator $(if $(CLUSTER),cluster,$(if $(READINGS),gateway,$(if $(STORE),store,broker)))

lint: needs ## Check format, lints, documentation, wording, crates, counts, licences and, with a network, advisories
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --exclude fulmar --no-deps --locked --quiet
	@scripts/firmware lint
	@scripts/deny
	@if command -v python3 >/dev/null; then scripts/package; else echo "packages: NOT CHECKED: python3 is missing" >&2; fi
	@if command -v python3 >/dev/null; then scripts/docs && scripts/crates && scripts/counts && scripts/studies --check; else echo "docs, crates, counts, studies: NOT CHECKED: python3 is missing" >&2; fi

fmt: needs ## Format the sources
	cargo fmt --all

doc: needs ## Build the documentation of all crates
	cargo doc --workspace --no-deps --locked

# From the program and its sources; `make test-rust` compares.
reference: ## Write the pages of docs/reference again
	FULMAR_WRITE_REFERENCE=1 cargo test --locked --package fulmar-tests --test reference

$(SITE_VENV)/ready: scripts/site/requirements.txt
	python3 -m venv $(SITE_VENV)
	$(SITE_VENV)/bin/pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes -r $<
	touch $@

site: $(SITE_VENV)/ready ## Make a searchable site of the documentation in target/site, and check its links
	$(SITE_VENV)/bin/sphinx-build --quiet --fresh-env --write-all --fail-on-warning --keep-going --conf-dir scripts/site \
		--doctree-dir $(TARGET)/site-pages . $(TARGET)/site
	@echo "Open $(TARGET)/site/index.html."

.PHONY: studies
studies: needs ## Run the lab's experiments of the five studies, for hours, and write docs/studies (STUDIES="NAME..."; STUDIES_SHORT=1: about an hour)
	cargo build --release --locked --package fulmar
	scripts/studies run $(if $(STUDIES_SHORT),--short) --program $(abspath $(TARGET))/release/fulmar $(STUDIES)

bench: needs ## Compare with other brokers on this machine (BENCH=short: quickly)
	cargo build --release --locked --package fulmar
	benches/peers/build target/peers
	benches/compare.py --fulmar $(TARGET)/release/fulmar $(if $(filter short,$(BENCH)),--short)

# The packages of this machine's architecture.
HERE := $(shell uname -m)
bench-packaged: needs web $(DIST_VENV)/ready ## Compare the program that packages contain with the one that cargo builds
	@scripts/dist/needs $(HERE)
	cargo build --release --locked --package fulmar
	$(DIST_ENV) VARIANTS=full scripts/dist/compile $(PROGRAMS) $(HERE)
	benches/compare.py --fulmar $(TARGET)/release/fulmar --packaged $(PROGRAMS)/$(HERE)/full/fulmar --rounds 5

# nats-server comes with the tests' Python packages. RMQTT's cluster is beside ours if
# `benches/peers/build target/peers cluster` has built a node of it.
.PHONY: bench-cluster
bench-cluster: needs $(VENV)/ready ## Compare a broker alone with a cluster: rates, acknowledgements, CPU of each part; instructions with valgrind
	cargo build --release --locked --package fulmar
	$(VENV)/bin/python benches/cluster.py --fulmar $(TARGET)/release/fulmar $(addprefix --rmqtt ,$(wildcard target/peers/bin/rmqtt-cluster))
	@if command -v valgrind >/dev/null; then $(VENV)/bin/python benches/cluster.py --fulmar $(TARGET)/release/fulmar --instructions; \
		else echo "instructions: NOT COUNTED: valgrind is missing"; fi

.PHONY: bench-page
bench-page: interop-needs web $(BROWSER)/node_modules/ready ## CPU-seconds of a broker with its page open in Chromium and 10,000 clients, beside those without it
	$(if $(FULMAR_BIN),,cargo build --release --locked --package fulmar)
	ulimit -Sn $$(ulimit -Hn) && cd $(BROWSER) && \
		FULMAR_BIN=$(or $(FULMAR_BIN),$(abspath $(TARGET))/release/fulmar) node page_cost.mjs

bench-parts: needs ## Time parts of the broker alone: packets, routes, commits
	cargo bench --locked -p fulmar-mqtt -p fulmar-broker -p fulmar-store \
		--bench codec --bench routes --bench commit

package: needs ## Package the crates for other programs, and compile each from its package
	scripts/package --verify

tools: needs ## Install what only developers need: cargo-deny
	cargo install --locked cargo-deny

needs:
	@scripts/need-cargo
