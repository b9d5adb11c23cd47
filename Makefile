# `make demo` and `make test` need Python 3.10 or newer with venv; all else is fetched into .venv.
#
# PyPI's torch is a CUDA build of several GB. For the CPU build of the same version let pip see PyTorch's CPU index or
# a folder that has the wheel; pip's own variables reach both .venv and the image builds:
#   make demo PIP_EXTRA_INDEX_URL=...        make demo PIP_FIND_LINKS=/folder/of/wheels
# For images also WHEELHOUSE=<an image that holds wheels>, and BASE=<a mirror of the parent image>.

PYTHON ?= python3
# The distribution's or Docker's own package first: a client put elsewhere on PATH may lack the plugin for BuildKit.
DOCKER ?= $(firstword $(wildcard /usr/bin/docker) docker)
PYTEST ?= .venv/bin/python -m pytest
export DOCKER
export DOCKER_BUILDKIT ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

# Folders as well, whose time shows that a file has gone.
SOURCES := $(shell find toolkit -not -name '*.pyc' -not -name __pycache__) $(wildcard README.md) LICENSE pyproject.toml
EXTRAS := local,stores,test,demo
TYPED := $(wildcard toolkit/trainbox containers tests benchmarks)

.DELETE_ON_ERROR:
.PHONY: help .venv wheel check mypy test unit cluster-test container-test images demo bench clean

help:
	@echo "make demo            train a small model on 2 hosts x 2 processes of this machine"
	@echo "make test            check, unit, cluster-test, container-test"
	@echo "make check           ruff, mypy, syntax of scripts"
	@echo "make unit | cluster-test | container-test    one of the test stages"
	@echo "make images          build containers/images.toml      make bench    benchmarks"
	@echo "make .venv | wheel   the environment with the wheel in it, the wheel      make clean"

# --- The environment. It holds the built wheel, not a link to toolkit/: what gets tested is what gets shipped.

.venv: .venv/.installed

.venv/.tools:
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install -q build 'hatchling>=1.27'
	@touch $@

dist/.wheel: $(SOURCES) .venv/.tools
	@rm -rf dist
	.venv/bin/python -m build --wheel --no-isolation --outdir dist . >/dev/null
	@touch $@

.venv/.dependencies: pyproject.toml .venv/.tools | dist/.wheel
	.venv/bin/python -m pip install -q "$$(echo dist/trainbox-*.whl)[$(EXTRAS)]"
	@touch $@

.venv/.installed: dist/.wheel .venv/.dependencies
	.venv/bin/python -m pip install -q --force-reinstall --no-deps --no-index dist/trainbox-*.whl
	@touch $@

wheel: dist/.wheel

# --- Checks and tests.

# ruff and mypy read the oldest supported version from pyproject.toml: newer syntax is an error in any Python.
check: .venv mypy
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	for script in entrypoints/*.sh; do sh -n "$$script" || exit; done
	bash -n .ci/run

mypy: .venv
	.venv/bin/mypy $(TYPED)

unit: .venv
	$(PYTEST) -m "not cluster and not container"

cluster-test: .venv
	$(PYTEST) -m cluster

container-test: .venv
	@if timeout 20 $(DOCKER) version >/dev/null 2>&1; then \
	  $(MAKE) --no-print-directory images && $(PYTEST) -m container; \
	elif [ "$${TRAINBOX_REQUIRE_DOCKER:-0}" = 1 ]; then \
	  echo "container tests: no Docker Engine answers '$(DOCKER) version', and TRAINBOX_REQUIRE_DOCKER=1" >&2; exit 1; \
	else \
	  echo "container tests skipped: no Docker Engine answers '$(DOCKER) version'"; \
	fi

test: .venv
	@times=; for stage in check unit cluster-test container-test; do \
	  printf '\n== make %s\n' $$stage; start=$$(date +%s); \
	  $(MAKE) --no-print-directory $$stage || exit; \
	  times="$$times $$stage $$(( $$(date +%s) - start )) s,"; \
	done; printf '\nmake test passed:%s\n' "$${times%,}"

images: .venv/.tools
	.venv/bin/python containers/build.py

# --- What a newcomer and a reader of the README run.

demo: .venv
	.venv/bin/trainbox run train.py --source-dir examples/pytorch-digits --hosts 2 --processes-per-host 2 \
	  --launcher torchrun -p epochs=6 --output out/

bench: .venv
	.venv/bin/python benchmarks/run.py

clean:
	rm -rf .venv .bench dist out .mypy_cache .pytest_cache .ruff_cache .hypothesis
