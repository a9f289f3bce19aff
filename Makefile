# Compiled modules are kept, whatever the environment says: tests start hundreds of servers.
unexport PYTHONDONTWRITEBYTECODE
# Everything is run from a virtual environment of our own; PYTHON makes it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# More arguments for pytest, as in: make test TESTS="tests/protocols/resp/test_sets.py -k empty"
TESTS ?=
# More parallel tests than processor cores, because most tests wait for something.
WORKERS ?= 6
# How lock treats versions that still fit; LOCK=--upgrade takes the newest.
LOCK ?=
# The program that is the backend of tests, as in: make test BACKEND=redis-server; else the embedded Valkey.
BACKEND ?=
# What chaos takes, as in: make chaos CHAOS="--messages 500000 --faults 200 --seed 1"
CHAOS ?=
# Whether tests are those of the compiled variant, as in: make test COMPILED=1
COMPILED ?=
VARIANT := $(if $(COMPILED),compile,uncompile)
# The tests of commands of all protocols.
COMMAND_TESTS := \
	$(patsubst %,tests/native/test_%.py,protocol turns) \
	$(patsubst %,tests/operators/test_%.py,log_fields) \
	$(patsubst %,tests/protocols/test_%.py,half_close) \
	$(patsubst %,tests/protocols/beanstalk/test_%.py,clients comparison protocol) \
	$(patsubst %,tests/protocols/memcached/test_%.py,clients commands) \
	$(patsubst %,tests/protocols/resp/test_%.py,command_keys examples keys lists observing pressure_commands \
		redis_compatibility server_commands sets transactions trimming) \
	$(patsubst %,tests/queues/test_%.py,functions groups jobs large_queue limits logs marks message_queue moving \
		orders outcomes) \
	$(patsubst %,tests/waiting/test_%.py,waiting waiting_ends waiting_for_roles)
# The tests of what queues do, which any backend must pass.
SEMANTIC_TESTS := tests/simulate tests/native/test_interrupted.py tests/native/test_mirror.py \
	$(patsubst %,tests/queues/test_%.py,blocks delivery_counts due_times groups job_ids jobs limits logs marks \
		moving once orders outcomes ranges room_by_bytes run_answers tickets) \
	$(patsubst %,tests/protocols/resp/test_%.py,lists pressure_commands unsupported sets transactions trimming \
		watched_kinds)
INSTALLED := $(VENV)/installed
RUNNABLE := $(VENV)/runnable
# Where the applications of PyPI and npm are that tests run on the server.
APPLICATIONS := build/applications
APPLICATION_FILES := $(addprefix tests/applications/,requirements.txt requirements-older.txt \
	package.json package-lock.json .npmrc)

.PHONY: run demo test test-quick test-compiled test-on-redis test-on-cluster test-applications \
	compile uncompile lint format bench chaos docs site screenshots man dist lock sbom clean

$(INSTALLED): pyproject.toml
	@echo "Installing pressure-server and the tools for its development into $(VENV) ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -qq --disable-pip-version-check --editable '.[dev]'
	touch $@

# The server alone, without the tools.
$(RUNNABLE): pyproject.toml
	@echo "Installing pressure-server into $(VENV) ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -qq --disable-pip-version-check --editable .
	touch $@

# Make the environment $(1) with the packages of $(2). setuptools comes first, because it builds some of them.
define install_applications
$(PYTHON) -m venv --clear $(APPLICATIONS)/$(1)
$(APPLICATIONS)/$(1)/bin/pip install -qq --disable-pip-version-check \
	$$(grep '^setuptools==' tests/applications/requirements.txt)
$(APPLICATIONS)/$(1)/bin/pip install -qq --disable-pip-version-check --no-build-isolation --use-pep517 \
	--requirement tests/applications/$(2)
endef

$(APPLICATIONS)/installed: $(APPLICATION_FILES)
	@echo "Installing applications of PyPI and npm into $(APPLICATIONS) ..."
	$(call install_applications,python,requirements.txt)
	$(call install_applications,python-older,requirements-older.txt)
	mkdir -p $(APPLICATIONS)/node
	cp tests/applications/package.json tests/applications/package-lock.json tests/applications/.npmrc \
		$(APPLICATIONS)/node
	npm ci --prefix $(APPLICATIONS)/node --ignore-scripts --no-audit --no-fund --loglevel error
	touch $@

# PRESSURE_LISTEN and PRESSURE_HTTP in the environment go before these.
run demo: export PRESSURE_LISTEN ?= resp://127.0.0.1:4000 memcached://127.0.0.1:11211 beanstalk://127.0.0.1
run: export PRESSURE_HTTP ?= http://127.0.0.1:4080
run: $(RUNNABLE)
	@echo "The server is interpreted, unless \`make compile\` has been run: then it takes half the processor time."
	@echo "When the server is ready, open $$PRESSURE_HTTP, and use a Redis client on $$PRESSURE_LISTEN"
	exec $(BIN)/pressure-server serve

# Compile the server in place: it takes half the processor time. docs/internals/compiled.md
compile: $(INSTALLED)
	PRESSURE_COMPILE=1 $(BIN)/python setup.py --quiet build_ext --inplace

# Interpret it again.
uncompile:
	rm -f pressure_server/compiled.sha256
	find pressure_server handlers -name '*.so' -delete

# Clients of each protocol, for a minute, on the server that `make run` has started.
demo: $(RUNNABLE)
	$(BIN)/pressure-server demo

# Run all tests that match the argument, a pytest marker expression: first the parallel ones, then,
# even if some failed, those marked `alone`. Status 5 means that TESTS selects none of that stage.
define run_tests
@parallel=0; alone=0; \
$(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal -m "not alone and ($(1))" $(TESTS) || parallel=$$?; \
$(BIN)/pytest -m "alone and ($(1))" $(TESTS) || alone=$$?; \
case "$$parallel $$alone" in "0 0" | "0 5" | "5 0") ;; \
*) echo "failed: pytest exited with $$parallel (parallel tests) and $$alone (tests that run alone)" >&2; exit 1;; esac
endef

test: export TEST_BACKEND := $(BACKEND)
test: $(INSTALLED) $(VARIANT)
	$(call run_tests,slow or not slow)

# The compiled variant: what the compiler could change.
test-compiled: $(INSTALLED) compile
	$(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal -m "not alone" tests/unit tests/interleavings \
		tests/protocols tests/queues tests/waiting tests/faults tests/cluster \
		tests/operators/test_compiled.py tests/operators/test_workers.py

# What queues do, on another backend than the embedded Valkey: Debian's Redis is the oldest that is supported.
test-on-redis: export TEST_BACKEND := redis-server
test-on-redis: $(INSTALLED)
	$(BIN)/pytest --numprocesses $(WORKERS) $(SEMANTIC_TESTS)

# What clients see of all commands, on a cluster: tests/support/on_cluster.py.
test-on-cluster: $(INSTALLED)
	$(BIN)/pytest --numprocesses $(WORKERS) --on-cluster $(COMMAND_TESTS)

# Applications that use the server in place of their Redis: docs/compatibility.md.
test-applications: $(INSTALLED) $(APPLICATIONS)/installed
	$(BIN)/pytest --numprocesses 4 tests/applications $(TESTS)

# What a change of the server breaks most often: no slow tests, and no folder whose tests start programs.
test-quick: TESTS += tests/unit tests/interleavings tests/protocols tests/queues tests/waiting
test-quick: $(INSTALLED) $(VARIANT)
	$(call run_tests,not slow)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/actionlint

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

chaos: $(INSTALLED)
	$(BIN)/python -m tests.chaos $(CHAOS)

# Not with the compiled variant: its functions have no docstrings, from which the reference is made.
docs: $(INSTALLED) uncompile
	$(BIN)/python -m tests.documents

# The pages in docs/ as a site, in build/site. A link to nothing is an error.
site: export NO_MKDOCS_2_WARNING := 1
site: $(INSTALLED)
	$(BIN)/python -m mkdocs build --quiet

# The pictures in docs/guides/console.md, with Debian's Chromium.
screenshots: $(INSTALLED)
	$(BIN)/python -m tests.screenshots

# The man pages, in build/man.
man: $(INSTALLED)
	$(BIN)/python -m tests.man_pages build/man

# The packages, as the release workflow builds them but for the compiled wheels, in dist.
dist: export PRESSURE_COMPILE := 0
dist: $(INSTALLED)
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m build --outdir dist client
	$(BIN)/twine check --strict dist/*

# The versions and hashes of what the image installs, and of what builds it; the versions of applications.
lock: export CUSTOM_COMPILE_COMMAND = make lock
lock: PIN = $(BIN)/pip-compile --quiet --strip-extras --allow-unsafe --no-emit-options --no-emit-index-url \
	--no-emit-find-links --no-emit-trusted-host $(LOCK)
lock: COMPILE = $(PIN) --generate-hashes
lock: $(INSTALLED)
	$(COMPILE) --output-file deploy/image/requirements.txt pyproject.toml
	$(COMPILE) --output-file deploy/image/build.txt deploy/image/build.in
	$(PIN) --output-file tests/applications/requirements.txt tests/applications/requirements.in
	$(PIN) --output-file tests/applications/requirements-older.txt tests/applications/requirements-older.in

# The software bill of materials of what the image installs, in CycloneDX JSON.
sbom: $(INSTALLED)
	mkdir -p build
	$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
		--output-format JSON --output-file build/sbom.cdx.json deploy/image/requirements.txt

clean:
	rm -rf $(VENV) build dist *.egg-info
