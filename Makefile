# The commands of the project. Everything that the distribution provides is installed by scripts/install.sh.

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
SKIFF := $(TARGET)/fast/skiff
DATA_DIR ?= /var/lib/skiff

.PHONY: build run down test check unit cluster bench release soak install install-tests fresh

build: install
	$(CARGO) build --profile fast -p skiff

# Builds, installs what is missing, starts a cluster and prints the kubeconfig's path.
run: build
	$(SKIFF) up --data-dir $(DATA_DIR)

down:
	$(SKIFF) down --data-dir $(DATA_DIR)

# Everything that can fail: style, lints, unit and simulation tests, then the tests on the real machine.
test: check unit cluster

check: install
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

# Simulated clusters live for hours: their tests run on the optimized build, whose crates `make cluster` needs anyway. All of these
# are named each time, so that each is built with the same features.
FAST := --profile fast -p skiff -p csi-hostpath

unit: install-tests
	$(CARGO) test --workspace --exclude sim
	$(CARGO) test $(FAST) -p sim --lib --test clusters

# The tests find their CSI driver beside the binary, and what `make unit` has built if it was there before.
cluster: install-tests
	$(CARGO) build $(FAST)
	SKIFF=$(abspath $(SKIFF)) DEBUG_SKIFF=$(wildcard $(abspath $(TARGET)/debug/skiff)) \
	TOYS=$(abspath $(TARGET)/debug/examples/toy_driver) \
	WIREGUARD=$$(ls -t $(abspath $(TARGET))/debug/deps/wireguard-* 2>/dev/null | grep -v '\.d$$' | head -1) tests/run.sh

# Stories of whole clusters with fresh seeds, for so many simulated hours. What happens in them is told on the other stream.
HOURS ?= 10
soak: install
	$(CARGO) run --profile fast -p sim --bin soak -- $(HOURS) 2> $(TARGET)/soak.log

bench: install
	$(CARGO) build --profile fast -p skiff -p bench
	$(TARGET)/fast/bench --skiff $(SKIFF)

# The binary for others, laid out by what requests did in a first one. Half an hour on two cores.
release: install
	scripts/release.sh

# Both commands of the README on a new Debian: a bare root filesystem beside this one. Takes a while.
fresh:
	scripts/fresh.sh readme

install:
	@scripts/install.sh

# With what only the tests of the real machine use.
install-tests:
	@scripts/install.sh tests
