# Thin wrappers; every target makes what it needs first.
#   make run [FOR=20]   the demo; needs Python >= 3.11 with pip and nothing else
#   make test           every test but the long ones; installs brokers from Debian when root
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
UV_VERSION := 0.13.7
UV := $(shell command -v uv 2>/dev/null || echo .tools/bin/uv)
export UV_PROJECT_ENVIRONMENT :=
# Nodes, load processes and tests are processes of Python by the hundred: what they import is compiled
# once and kept in .tools, even where files beside the sources are not wanted.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/.tools/compiled
# Tests that need neither brokers nor Spark share the cores one by one.  Of the others two files run at
# once, since they wait most of the time, and then those one by one that judge by time (`alone`).
PARALLEL := --numprocesses logical --dist worksteal
TWO_FILES := --numprocesses 2 --dist loadfile --no-loadscope-reorder
WITHOUT := tests/unit tests/property tests/fuzz \
	$(addprefix tests/conformance/,test_algorithms.py test_catalog.py test_matrix.py)
WITH := $(addprefix --ignore=,$(WITHOUT))

.DEFAULT_GOAL := help
.PHONY: help setup run test test-unit test-all test-deps fmt packages life choose check bench bench-relay \
	bench-closed-loop bench-fabric bench-confirm bench-source bench-apart bench-against bench-load \
	bench-qos bench-pipeline bench-hostile bench-guard bench-overlay bench-geo bench-sim bench-sim-spark \
	fuzz fuzz-node kill apart soak \
	five-brokers \
	lock clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

.tools/bin/uv:
	@$(PYTHON) -c 'import sys; sys.exit("Isthmus needs Python 3.11 or newer; this is " + sys.version.split()[0] + " (set PYTHON=...)") if sys.version_info < (3, 11) else None'
	@echo "fetching uv (environment builder)"
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target .tools uv==$(UV_VERSION)

.venv/.run: pyproject.toml constraints.txt | $(UV)
	@test -x $(BIN)/python || $(UV) venv --quiet --seed --python $(PYTHON) .venv
	@echo "installing Isthmus"
	@$(UV) pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[demo]'
	@touch $@

.venv/.dev: .venv/.run
	@echo "installing what the tests and checks need from PyPI"
	@$(UV) pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[dev]'
	@touch $@

setup: .venv/.dev  ## the Python environment with everything

run: .venv/.run  ## the demo, until Ctrl-C; FOR=20 ends it after 20 s
	@$(BIN)/isthmus up $(if $(FOR),--for $(FOR))

test-deps: .venv/.dev  ## the brokers the tests need (Debian as root, npm, Maven)
	@bash scripts/install-test-deps.sh
	@$(BIN)/python -m isthmus.brokers install

test: test-deps  ## every test but the long ones
	$(BIN)/pytest $(PARALLEL) -m "not slow" $(WITHOUT) $(ARGS)
	$(BIN)/pytest $(TWO_FILES) -m "not slow and not alone" $(WITH) $(ARGS)
	$(BIN)/pytest -m "not slow and alone" $(WITH) $(ARGS)

test-unit: .venv/.dev  ## unit tests alone: no brokers, no Spark
	$(BIN)/pytest $(PARALLEL) -m "not slow" tests/unit $(ARGS)

test-all: test-deps  ## the long schedules, the full broker matrix and fuzzing too
	$(BIN)/pytest $(PARALLEL) $(WITHOUT) $(ARGS)
	$(BIN)/pytest $(TWO_FILES) -m "not slow and not alone" $(WITH) $(ARGS)
	$(BIN)/pytest -m "slow or alone" $(WITH) $(ARGS)

fmt: .venv/.dev  ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

packages: .venv/.dev  ## draw the figure of the packages anew
	$(BIN)/python scripts/packages.py

life: .venv/.dev  ## draw the figures of the lives of links and sessions anew
	$(BIN)/python scripts/life.py

check: .venv/.dev  ## formatting, lint, types, the figures of the packages and of the lives of links and sessions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python scripts/packages.py --check
	$(BIN)/python scripts/life.py --check

choose: .venv/.dev  ## what each algorithm puts on links, into docs/howto/choose-an-algorithm.md
	$(BIN)/python scripts/choose.py $(ARGS)

bench: bench-relay bench-closed-loop bench-fabric bench-confirm bench-load bench-pipeline bench-hostile  ## all

bench-relay: test-deps  ## a node in front of Mosquitto against Mosquitto alone
	$(BIN)/python benchmarks/bench_relay.py $(ARGS)

bench-closed-loop: test-deps  ## publishers that wait for PUBACKs: does resting slow them down?
	$(BIN)/python benchmarks/bench_closed_loop.py $(ARGS)

bench-apart: test-deps  ## a node is away for ten minutes at 10,000 messages a second
	$(BIN)/python benchmarks/bench_apart.py $(ARGS)

bench-fabric: test-deps  ## two linked nodes against Mosquitto's bridge; a million subscriptions
	$(BIN)/python benchmarks/bench_fabric.py $(ARGS)

bench-source: test-deps  ## messages taken from the broker against messages taken from clients
	$(BIN)/python benchmarks/bench_source.py $(ARGS)

bench-against: test-deps  ## nodes of this tree against those of a commit: BEFORE=<commit>
	$(BIN)/python benchmarks/bench_against.py $(BEFORE) $(ARGS)

bench-confirm: test-deps  ## publishers that wait for all brokers against those that wait for their own
	$(BIN)/python benchmarks/bench_confirm.py $(ARGS)

bench-qos: test-deps  ## closed loops at QoS 1 and 2, a million topics, connection storms
	$(BIN)/python benchmarks/bench_qos.py $(ARGS)

bench-load: .venv/.dev  ## how many messages the load tool receives and records
	$(BIN)/python benchmarks/bench_load.py $(ARGS)

bench-pipeline: .venv/.dev  ## the indexes of 200 million deliveries: Spark against DuckDB
	$(BIN)/python benchmarks/bench_pipeline.py $(ARGS)

bench-guard: .venv/.dev  ## fabrics of up to a thousand nodes in the simulator: what the topology guard costs
	$(BIN)/python benchmarks/bench_guard.py $(ARGS)

bench-overlay: test-deps  ## how fast a fabric builds and repairs its tree: live against bridges, simulated up to 1,000 nodes
	$(BIN)/python benchmarks/bench_overlay.py $(ARGS)

bench-geo: test-deps  ## gateways of `geo`: look-up, coverings, against the relay, four brokers against one
	$(BIN)/python benchmarks/bench_geo.py $(ARGS)

bench-sim: .venv/.dev  ## the bulk simulator: 100,000 to 10,000,000 nodes; ARGS=--large for 100,000,000
	$(BIN)/python benchmarks/bench_sim.py $(ARGS)

bench-sim-spark: .venv/.dev  ## the thesis's sweep by one Spark worker and by two
	$(BIN)/python benchmarks/bench_sim_spark.py $(ARGS)

bench-hostile: test-deps  ## how long hostile clients and neighbors hold a node
	$(BIN)/python benchmarks/bench_hostile.py $(ARGS)

soak: .venv/.dev  ## seeded fault schedules in the simulator; SCHEDULES=10000 for each algorithm
	$(BIN)/python -m isthmus.sim.soak --algorithm pf sf --schedules $(or $(SCHEDULES),10000) --record docs/explanation/soak.json
	$(BIN)/python -m isthmus.sim.soak --algorithm tree routed-tree topic-tree 'topic-tree?roots=balance' skipgraph --schedules $(or $(SCHEDULES),10000) --record docs/explanation/soak-trees.json
	$(BIN)/python -m isthmus.sim.soak --algorithm $(foreach each,pf sf tree topic-tree skipgraph,'$(each)?confirm=fabric') --schedules $(or $(SCHEDULES),10000) --record docs/explanation/soak-confirm.json
	PYTHONPATH=examples/isthmus-stars/src $(BIN)/python -m isthmus.sim.soak --algorithm isthmus_stars:StarPerTopic --schedules $(or $(SCHEDULES),10000) --record docs/explanation/soak-stars.json
	$(BIN)/python -m isthmus.sim.soak --algorithm $(foreach each,pf sf tree skipgraph,'$(each)?brokers=2&confirm=fabric') --schedules $(or $(SCHEDULES),10000) --record docs/explanation/soak-brokers.json
	$(BIN)/python -m isthmus.sim.soak --algorithm 'pf?rules=drawn' 'sf?rules=drawn' 'sf?retained=routed' --schedules $(or $(SCHEDULES),10000) --record docs/explanation/soak-rules.json
	$(BIN)/python -m isthmus.sim.soak --algorithm 'pf?source=broker' 'sf?source=broker' 'tree?source=broker' --schedules $(or $(SCHEDULES),10000) --record docs/explanation/soak-source.json
	$(BIN)/python -m isthmus.sim.moving_cells --schedules $(or $(SCHEDULES),10000) --record docs/explanation/soak-geo.json
	$(BIN)/python -m isthmus.sim.figures

five-brokers: test-deps  ## five brokers of five makes, found by discovery; the how-to page
	$(BIN)/python scripts/five_brokers.py

apart: test-deps  ## one of five brokers hangs for two minutes; the table of the guarantees
	APART_RECORD=docs/explanation/apart.json $(BIN)/pytest -q -m slow tests/e2e/test_apart.py
	PYTHONPATH=tests $(BIN)/python -m e2e.kill_table

kill: test-deps  ## nodes and brokers of a running fabric are killed; the tables of the guarantees
	KILL_RECORD=docs/explanation/kill.json $(BIN)/pytest -q -m slow tests/e2e/test_kill.py
	KILL_CONFIRM_RECORD=docs/explanation/kill-confirm.json $(BIN)/pytest -q -m slow tests/e2e/test_kill_confirm.py
	KILL_TREE_RECORD=docs/explanation/kill-tree.json $(BIN)/pytest -q -m slow tests/integration/test_tree.py
	PYTHONPATH=tests $(BIN)/python -m e2e.kill_table

fuzz: .venv/.dev  ## the packet decoder; INPUTS=2000000 by default
	$(BIN)/python tests/fuzz/fuzz_decoder.py --inputs $(or $(INPUTS),2000000)

fuzz-node: .venv/.dev  ## packet sequences through the whole node; PACKETS=10000000 by default
	PYTHONPATH=tests $(BIN)/python tests/fuzz/fuzz_node.py --packets $(or $(PACKETS),10000000) --record docs/explanation/fuzz-node.json
	$(BIN)/python -m isthmus.sim.figures

lock: | $(UV)  ## write constraints.txt anew
	$(UV) pip compile --quiet --all-extras --universal --no-annotate --no-header --no-emit-index-url --upgrade pyproject.toml -o constraints.txt

clean:  ## remove the environment and caches
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache
