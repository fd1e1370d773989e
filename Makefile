# make reproduce   set up, run the study, write its report
# make test        set up, run the tests
# make help        the rest

STUDY ?= embedded
# How the study shrinks, a name of conf/scale: SCALE=tiny
SCALE ?=
# Hydra overrides of every job, a JSON list: OVERRIDES='["seed=1","budgets=[15,31]"]'
OVERRIDES ?=
CORES ?= all
PYTHON ?= python3

BIN := .venv/bin
STAMP := .venv/.installed
RESULTS := results/$(STUDY)$(if $(SCALE),-$(SCALE))
REPORT := $(RESULTS)/report.html
SNAKEMAKE := $(BIN)/snakemake --cores $(CORES)
# By a name of its own: where a recipe says $(MAKE), make -n runs its whole line, and with it the study.
AGAIN = $(MAKE) --no-print-directory
# For the shell, inside single quotes.
ASKED := $(subst ','\'',$(OVERRIDES))
CONFIG := --config study=$(STUDY) $(if $(SCALE),scale=$(SCALE)) $(if $(OVERRIDES),'overrides=$(ASKED)')

# Without bytecode every job and every test process compiles torch and transformers anew, seven seconds each time.
unexport PYTHONDONTWRITEBYTECODE

# The one name of conf/$(1) that a variable holds, or nothing; two names with a space between them are none.
one-of = $(if $(filter 1,$(words $(2))),$(filter $(call names,$(1)),$(2)))
names = $(basename $(notdir $(wildcard conf/$(1)/*.yaml)))

.PHONY: help setup named plan reproduce report dry-run resume retry sync archive test docs lint format clean-study

help:
	@echo 'make setup        .venv with the exact versions of requirements.lock'
	@echo 'make reproduce    setup, study $(STUDY), its report; run it again to continue'
	@echo 'make plan         what the study measures, by measurement of the paper, and what it needs'
	@echo 'make dry-run      what the study would still run, and how long it may take'
	@echo 'make resume       after a crash: refuse while a job is alive, else unlock and continue'
	@echo 'make retry        measure what failed again, and nothing that is finished; then reproduce'
	@echo 'make sync         upload the W&B runs that lie on disk'
	@echo 'make archive      records, configuration and report as one file, for Zenodo'
	@echo 'make clean-study  delete the results of the study'
	@echo 'make test         setup, all tests'
	@echo 'make docs         the documentation as pages, in site/'
	@echo 'make lint         ruff'
	@echo 'Variables: STUDY=$(STUDY) SCALE=$(SCALE) CORES=$(CORES) PYTHON=$(PYTHON) OVERRIDES=["key=value",...]'

# Told before anything is installed, run or deleted.
named:
	@:$(if $(call one-of,study,$(STUDY)),,$(error no study '$(STUDY)'; known: $(call names,study)))
	@:$(if $(SCALE),$(if $(call one-of,scale,$(SCALE)),,$(error no scale '$(SCALE)'; known: $(call names,scale))))

setup: $(STAMP)

$(STAMP): pyproject.toml requirements.lock requirements-embedded.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "error: $(PYTHON) is no Python 3.11 or newer; set PYTHON to one" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c requirements.lock -e '.[dev]'
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps --require-hashes \
	  -r requirements-embedded.txt
	@touch $@

# The report is written whatever became of the study, and only when something changed since the last one.
reproduce: named setup
	@code=0; $(SNAKEMAKE) $(CONFIG) || code=$$?; \
	$(AGAIN) report || code=$$?; \
	$(BIN)/python -m workflow.lib.outcome $(RESULTS) || code=$$?; \
	exit $$code

report: named setup
	@if [ -e $(REPORT) ] && [ -z "$$(find $(RESULTS) workflow/report figures/captions -newer $(REPORT) \
	    \( -path '*/figures/*' -o -path '*/tables/*' -o -name 'scorecard.*' -o -name '*.rst' \) -print -quit)" ]; then \
	  echo "report is up to date"; \
	else \
	  $(SNAKEMAKE) --report $(REPORT) $(CONFIG) 'gpus=[]'; \
	fi

plan: named setup
	@$(BIN)/python -m workflow.lib.plan $(STUDY) '$(ASKED)' '$(SCALE)'

dry-run: named setup
	@$(SNAKEMAKE) -n $(CONFIG)
	@$(BIN)/python -m workflow.lib.estimate $(STUDY) '$(ASKED)' '$(SCALE)'

resume: named setup
	@$(BIN)/python -m workflow.lib.resume $(RESULTS)
	@$(SNAKEMAKE) --unlock $(CONFIG)
	@$(AGAIN) reproduce

# Records of which a part failed are done for Snakemake; the cause (memory, a busy device, the hub) may be gone. They are
# deleted, and their jobs continue from the checkpoints of what is finished.
retry: named setup
	@$(BIN)/python -m workflow.lib.retry $(RESULTS)
	@$(AGAIN) reproduce

sync: named setup
	@runs=$$($(BIN)/python -m workflow.lib.sync $(RESULTS)) && $(BIN)/wandb sync --yes $$runs

archive: named setup
	@$(BIN)/python scripts/archive.py study=$(STUDY) $(if $(SCALE),scale=$(SCALE))

clean-study: named
	rm -rf $(RESULTS)

# One worker a core and up to four; a file's tests stay together, for they share what is slow to make, and
# tests/conftest.py says which files are taken first.
test: setup
	$(BIN)/python -m pytest -q -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# NO_MKDOCS_2_WARNING: the theme's advertisement is no warning of these pages.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "site/index.html"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
