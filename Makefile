# Thin: every target is one call of `cargo xtask` or of weft itself.
DIR   ?= ./weft-data
MOUNT ?= ./mnt
SEEDS ?= 100

CARGO_BIN := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
WEFT      := $(CARGO_BIN)/release/weft
# weft is linked statically, with musl: one binary for all distributions.
STATIC    := $(shell uname -m)-unknown-linux-musl
# In the profile and for the target of `make up`, so that its programs are not compiled again.
XTASK     := cargo run --quiet --release --target $(STATIC) --package xtask --

.PHONY: up release down demo check test sim bench docs deb rpm install tools fuse

## up: build weft, run a whole cluster on this machine and mount it at ./mnt
up: release fuse
	mkdir -p $(MOUNT)
	$(WEFT) up --dir $(DIR) --mount $(MOUNT) --detach

## release: the static binary, at target/release/weft
release: tools
	cargo build --release --target $(STATIC) --package weft
	@mkdir -p $(CARGO_BIN)/release
	@ln -f $(CARGO_BIN)/$(STATIC)/release/weft $(WEFT)

## down: unmount and stop
down:
	$(WEFT) down --dir $(DIR)

## demo: copy a source tree into the mount, build in it, read it back, compare
demo: release
	$(WEFT) demo $(MOUNT) --source .

## check: format, lints, our own rules, fast tests
check: tools
	cargo xtask check

## test: every test; the last line has the totals. FULL=1 runs the long forms, which takes some hours
test: tools
	cargo xtask test $(if $(FULL),--full)

## sim: the whole-cluster simulation, SEEDS=N, or SEED=n to replay one
sim: tools
	cargo xtask sim $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

## bench: weft beside what it stands on, and what else is mounted (PEERS='GlusterFS=/mnt/g MooseFS=/mnt/m'); the table goes into docs/performance.md
bench: tools
	cargo xtask bench peers $(foreach peer,$(PEERS),--peer $(peer)) --write docs/performance.md

## docs: the generated reference and the API documentation
docs: tools
	cargo xtask docs
	cargo doc --workspace --no-deps

## deb: Debian packages: binary, systemd units, man pages, guide; its symbols; BINARY=path packs one that is there
deb: tools
	$(XTASK) deb $(if $(BINARY),--binary $(BINARY))

## rpm: the same as RPM packages; needs rpmbuild
rpm: tools
	$(XTASK) rpm $(if $(BINARY),--binary $(BINARY))

## install: weft in the system's path and the helper of mount(8)
install: release
	install -m 755 $(WEFT) /usr/local/bin/weft
	/usr/local/bin/weft install-helper

# What building needs on a bare Debian machine: musl-gcc compiles the C parts of the static binary.
tools:
	@command -v cc >/dev/null && command -v musl-gcc >/dev/null || { \
	    [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -q && \
	    apt-get install -y -q --no-install-recommends build-essential musl-tools; } || { \
	    echo "error: no C compiler for static binaries; hint: apt-get install build-essential musl-tools"; exit 1; }
	@command -v cargo >/dev/null || { \
	    echo "error: no Rust toolchain (weft needs 1.89 or later; Debian's own is older)"; \
	    echo "hint: curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y, then open a new shell"; \
	    exit 1; }
	@[ -d "$$(rustc --print target-libdir --target $(STATIC))" ] || rustup target add $(STATIC) || { \
	    echo "error: the Rust toolchain has no libraries for static binaries"; \
	    echo "hint: rustup target add $(STATIC)"; exit 1; }

# What mounting needs.
fuse:
	@[ -e /dev/fuse ] || { echo "error: no /dev/fuse; hint: modprobe fuse, or run the container with --device /dev/fuse"; exit 1; }
