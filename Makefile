# make help says what there is. Two lanes: classic (.venv) is Spark 3.5 with petastorm,
# modern (.venv-modern) is Spark 4 with today's Arrow and numpy.

BACKEND ?= horovod
CHAOS ?=
LANE ?= classic modern
ARGS ?=
N ?= 100
SEED ?= 1
BASE ?= origin/main
JOBS ?= 2
ONLY ?=
TABLES ?=
EXAMPLES ?= 20000
GPU_PYTHON ?= 3.12
URL ?=

# The demo's last line is the job's own, also where a test of ours calls this make again.
MAKEFLAGS += --no-print-directory
# Each lane's pip has its own Spark; nothing of another may come in.
unexport SPARK_HOME SPARK_CONF_DIR PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON PYTHONPATH PYTHONHOME
# Packages are compiled when they are imported first; with this each process would do it again.
unexport PYTHONDONTWRITEBYTECODE

venv_classic := .venv
venv_modern := .venv-modern
venv_tensorflow := .venv-tensorflow
venv_today := .venv-today
# Recorded by set-up, so read when a recipe runs.
in_lane = JAVA_HOME="$$(cat $(venv_$(1))/java-home)" $(venv_$(1))/bin/python

# Three files at a time on two cores: much of a test is waiting, for processes and for deadlines.
side_by_side := --numprocesses=3 --dist=loadfile --no-loadscope-reorder
# With ARGS="-k name" it may be that a part has no such test.
none_is_fine = $(if $(ARGS),|| [ $$? -eq 5 ])

# One after another, also with --jobs, but for what this file itself starts side by side.
ifndef BESIDE
.NOTPARALLEL:
endif
.PHONY: help setup setup-classic setup-modern run-classic run-modern demo quick quick-data \
    quick-training quick-others test ready java-classic java-modern test-classic test-modern \
    test-tensorflow frameworks-today engines-short packed others-classic system system-classic system-modern compat docs site picture lint frameworks fuzz mutants \
    random-ends mixed-faults failing-storage slow-rank endurance simulated-ranks killed-drivers foreign foreign-tables engines bench clean first-example release gpu

help:  ## say what there is
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 16

setup: setup-classic setup-modern  ## set up both lanes (everything below does this by itself)

setup-classic setup-modern: setup-%:
	@conf/setup_lane.sh $* testing

run-classic run-modern: run-%:
	@conf/setup_lane.sh $* running

demo: run-$(firstword $(LANE))  ## train on Spark, track in MLflow; BACKEND=horovod|torch CHAOS=1
	@rm -rf build/demo # What an earlier one kept.
	@$(call in_lane,$(firstword $(LANE))) jobs/train.py --example digits --num-proc 2 \
	    --backend $(BACKEND) --tracking experiment=digits \
	    --run-config driver_log_verbosity=log_callback_only max_restarts=1 \
	    $(CHAOS:1=--hyperparameters chaos=true --checkpoint-url build/demo/checkpoints)

on_lanes := $(LANE:%=test-%) $(if $(filter classic,$(LANE)),others-classic) \
    $(LANE:%=system-%)
ifeq ($(ARGS),)
# Each whole program runs in one lane: all of them in both would take too long.
test: export SPARKDL_TEST_SHARED = $(word 2,$(LANE))
test: $(on_lanes)  ## lint and test both lanes; LANE=classic|modern, ARGS="-k name"
else
# Only what is asked for, without lint and without what other tests need.
test: $(LANE:%=java-%)
	@none=true; $(foreach lane,$(LANE),$(call in_lane,$(lane)) -m pytest $(side_by_side) $(ARGS); \
	    code=$$?; \
	    if [ $$code -eq 0 ]; then none=false; \
	    elif [ $$code -eq 5 ]; then echo "make test: ARGS choose no test of the $(lane) lane" >&2; \
	    else exit $$code; fi;) ! $$none
endif

# Three processes for two cores. The last one, of all else, waits for others most, and imports neither
# torch nor MLflow.
unit_of_data := $(addprefix tests/unit/,launch/backends data docs fuzz) \
    $(wildcard tests/unit/test_*.py)
unit_of_training := $(addprefix tests/unit/,checkpoint doctor estimator jobs tensors \
    tracking training launch/worker)
quick: setup-classic  ## lint and the unit tests alone, in less than 45 seconds
	@$(MAKE) BESIDE=1 --jobs=4 --output-sync=target lint quick-data quick-training quick-others

quick-data: tests = $(unit_of_data)
quick-training: tests = $(unit_of_training)
quick-others: tests = tests/unit $(addprefix --ignore=,$(unit_of_data) $(unit_of_training))
# Three processes for two cores: threads of torch's would only wait for one another.
quick-data quick-training quick-others test-classic test-modern system-classic system-modern: \
    export OMP_NUM_THREADS = 1
quick-data quick-training quick-others:
	@$(call in_lane,classic) -m pytest $(tests) $(ARGS) $(none_is_fine)

java-classic java-modern: java-%: setup-%
	@$(call in_lane,$*) tests/quick_java.py

# The other lane's packages come while mypy reads these: each uses one core.
ready: setup-classic
	@$(MAKE) BESIDE=1 --jobs=3 lint frameworks $(LANE:%=java-%)

# Beside the lane: where transformers is found, torchmetrics imports it, and so does each rank.
frameworks: build/frameworks/done  ## install Lightning, Accelerate, Transformers for their tests
build/frameworks/done: tests/frameworks/requirements.txt conf/constraints-classic.txt | setup-classic
	@rm -rf build/frameworks && mkdir -p build/frameworks
	@conf/pip_install.sh build/frameworks.log .venv/bin/python --target build/frameworks --no-deps \
	    --requirement $<
	@touch $@

test-classic: ready
test-modern: java-modern
test-classic test-modern: test-%:
	@$(call in_lane,$*) -m pytest -m "not system" $(side_by_side) $(ARGS) $(none_is_fine)

system-classic: setup-classic frameworks
system-modern: setup-modern
system-classic system-modern: system-%: java-%
	@$(call in_lane,$*) -m pytest -m system tests/system tests/integration \
	    $(side_by_side) $(ARGS) $(none_is_fine)

# Each uses about one core, and the engines wait for their clusters.
others-classic: setup-classic
	@$(MAKE) BESIDE=1 --jobs=3 --output-sync=target engines-short test-tensorflow packed

# All but this project is kept in the user's cache, where the system's tests find it.
packed: setup-classic
	@mkdir -p build
	@conf/pack_environment.sh --python $(venv_classic)/bin/python build/environment.tar.gz
	@rm build/environment.tar.gz

# TensorFlow is large, and so in an environment of its own on top of the classic lane.
test-tensorflow: setup-classic
	@conf/setup_on_lane.sh tensorflow $(venv_classic) conf/constraints-tensorflow.txt
	@$(call in_lane,tensorflow) -m pytest tests/tensorflow_ranks $(ARGS) || [ $$? -eq 5 ]

# Not in "make test", for its minutes. DeepSpeed compiles a part of itself once, by ninja.
frameworks-today: setup-modern  ## DeepSpeed, TRL, PEFT, Sentence Transformers, today's Transformers as ranks
	@conf/setup_on_lane.sh today $(venv_modern) tests/frameworks/today.txt
	@PATH="$(CURDIR)/$(venv_today)/bin:$$PATH" TORCH_EXTENSIONS_DIR=$(CURDIR)/$(venv_today)/extensions \
	    $(call in_lane,today) -m pytest tests/frameworks $(ARGS)

system: $(LANE:%=system-%)  ## only whole programs and trainings: jobs, notebooks, clusters, a browser

compat: setup-classic setup-modern  ## try Databricks' runtimes, other Pythons and MLflows; ONLY="python-3.13"
	@conf/compat.sh $(ONLY)

docs: setup-classic  ## write docs/reference from the docstrings, tables of figures, and notebooks/*.ipynb
	@.venv/bin/python docs/reference.py
	@.venv/bin/python docs/figures.py
	@.venv/bin/python docs/notebooks.py

# An environment of its own, since Sphinx and the lanes' tools want different versions of docutils.
site: .venv-site/done  ## the documentation with search, in build/site/html; links that lead nowhere are errors; URL=https://…
	@$(<D)/bin/python docs/site/pages.py build/site/pages $(URL)
	@$(<D)/bin/python -m sphinx -W --keep-going -n -q -E -c docs/site build/site/pages build/site/html
	@echo "build/site/html/index.html"
.venv-site/done: conf/constraints-site.txt
	@rm -rf .venv-site && $(or $(PYTHON),python3) -m venv .venv-site
	@conf/pip_install.sh .venv-site/pip.log .venv-site/bin/python --requirement $<
	@touch $@

picture: run-classic  ## record make demo CHAOS=1 for the README: docs/demo.cast, docs/demo.svg
	@.venv/bin/python docs/demo.py $(MAKE) demo CHAOS=1

lint: setup-classic  ## ruff and mypy, and pins that have moved
	@sha256sum --check --status conf/pins-checked.sha256 || .venv/bin/python conf/check_pins.py
	@.venv/bin/python -m ruff check
	@.venv/bin/python -m ruff format --check
	@.venv/bin/python -m mypy

fuzz: setup-classic  ## hostile bytes for every parser; EXAMPLES=100000 of each, others each time
	@FUZZ_EXAMPLES=$(EXAMPLES) $(call in_lane,classic) -m pytest tests/unit/fuzz --timeout=0 $(ARGS)

mutants: setup-classic  ## break the code in N small ways, what BASE lacks first: do tests see it? SEED=2
	@PYTHONPATH=tests $(call in_lane,classic) -m mutants --count $(N) --seed $(SEED) \
	    --base "$(BASE)" --jobs $(JOBS) $(ARGS)

random-ends: setup-classic  ## N runs that log and fail at random moments: is each entry in MLflow once? SEED=2
	@PYTHONPATH=.:tests:jobs $(call in_lane,classic) -m random_ends --count $(N) --seed $(SEED) $(ARGS)

mixed-faults: setup-classic  ## N faults, one to three at once, in ranks on two hosts: is each told rightly? SEED=2
	@PYTHONPATH=.:tests:jobs $(call in_lane,classic) -m mixed_faults --count $(N) --seed $(SEED) $(ARGS)

failing-storage: setup-classic  ## N loads of checkpoints while they are saved, and writes that fail; SEED=2
	@PYTHONPATH=.:tests:jobs $(call in_lane,classic) -m failing_storage --loads $(N) --seed $(SEED) $(ARGS)

slow-rank: setup-classic  ## N healthy trainings and 20 with a slowed rank: is it named, and no other?
	@PYTHONPATH=.:tests:jobs $(call in_lane,classic) -m slow_rank --healthy $(N) $(ARGS)

endurance: setup-classic  ## what N runs in one session leave, and what ranks that print much cost
	@PYTHONPATH=.:tests:jobs $(call in_lane,classic) -m endurance --runs $(N) $(ARGS)

simulated-ranks: setup-classic  ## what the driver takes for N ranks that are simulated; N=4096
	@PYTHONPATH=.:tests:jobs $(call in_lane,classic) -m simulated_ranks --ranks $(N) $(ARGS)

killed-drivers: setup-classic  ## N named trainings whose driver is killed: do they go on and end alike? SEED=2
	@PYTHONPATH=.:tests:jobs $(call in_lane,classic) -m killed_drivers --kills $(N) --seed $(SEED) $(ARGS)

foreign: frameworks  ## other people's tests, as ranks and under their own launcher; HOROVOD_SOURCE=… SPARK_SOURCE=… TABLES="folder …"
	@PYTHONPATH=tests:build/frameworks $(call in_lane,classic) -m foreign $(ARGS)
	@[ -z "$(TABLES)" ] || $(MAKE) foreign-tables

foreign-tables: build/foreign/done setup-modern  ## files and tables of other projects, by value, in both lanes; TABLES="folder …"
	@PYTHONPATH=.:tests:build/foreign $(call in_lane,classic) -m foreign.tables $(TABLES) $(ARGS)
	@PYTHONPATH=.:tests:build/foreign $(call in_lane,modern) -m foreign.tables $(TABLES) $(ARGS)
build/foreign/done: tests/foreign/requirements.txt | setup-classic
	@rm -rf build/foreign && mkdir -p build/foreign
	@conf/pip_install.sh build/foreign.log .venv/bin/python --target build/foreign --no-deps \
	    --requirement $<
	@touch $@

# Their programs are too large to be kept here: in the folder $ENGINES, by default ../shared/engines.
engines: setup-classic  ## trainings, and what they lose, on a real YARN and Kubernetes; ONLY=yarn|kubernetes
	@$(call in_lane,classic) -m pytest tests/engines$(if $(ONLY),/test_$(ONLY).py) $(ARGS) $(none_is_fine)

# One training on each.
engines-short: setup-classic
	@$(call in_lane,classic) -m pytest tests/engines -k "client_mode and torch" \
	    $(ARGS) $(none_is_fine)

bench: run-classic  ## time from call to result, beside horovod.spark.run and TorchDistributor
	@$(call in_lane,classic) jobs/benchmark.py launch

first-example:  ## install as the README says first, elsewhere, and run its first example; PYTHON=python3.13
	@$(or $(PYTHON),python3) conf/first_example.py

release: setup-classic  ## a wheel and a source distribution in dist/, tried; uploads nothing; URL=https://…
	@.venv/bin/python conf/release.py --url "$(URL)"

gpu: setup-classic  ## build/gpu-kit, to be carried to a machine with a GPU; GPU_PYTHON=3.11|3.12
	@PYTHON=.venv/bin/python tests/gpu/make_kit.sh $(GPU_PYTHON) build/gpu-kit

clean:  ## remove the lanes and what tools left; wheels in the wheelhouse stay
	rm -rf .venv .venv-modern .venv-tensorflow .venv-today .venv-compat .venv-site *.egg-info build dist .mypy_cache .pytest_cache .ruff_cache .coverage*
