# Rules that render: pure functions of records. They read what lies there of the records that figures/inputs.py names, so
# they also serve a study of which a part failed, or a part came from another machine. They take seconds and no device:
# on a cluster they run beside Snakemake.

KNOWN = artefacts()
WANTED = KNOWN if MATRIX.artefacts is None else MATRIX.artefacts
if not set(WANTED) <= set(KNOWN):
    refuse(f"study {STUDY}: artefacts {sorted(set(WANTED) - set(KNOWN))} are unknown; known: {', '.join(KNOWN)}")
FIGURES = [name for name in artefacts("fig") if name in WANTED]
TABLES = [name for name in artefacts("table") if name in WANTED]

# What every artefact is drawn with, and the paper's own numbers.
SHARED_MODULES = sorted(
    [
        *(str(path) for path in Path("figures").glob("*.py") if path.stem not in [*KNOWN, "summary"]),
        *(str(path) for path in [*Path("figures").glob("*.html"), *Path("figures/paper").glob("*.*")]),
        *(str(path) for suffix in ("py", "yaml") for path in Path("figures/claims").glob(f"*.{suffix}")),
        "conf/assumptions.yaml",
    ]
)
# What summaries are computed with.
STATISTICS = sorted(
    str(path)
    for pattern in (
        *(f"figures/{name}.py" for name in ("summary", "data", "inputs", "panels")),
        *(f"src/cast/experiments/{name}.py" for name in ("statistics", "bootstrap")),
        "src/cast/width/*.py",
    )
    for path in Path().glob(pattern)
)
SUMMARY = f"{RESULTS}/summary/cells.parquet"
RENDERED = [
    *(f"{RESULTS}/figures/{name}.{suffix}" for name in FIGURES for suffix in ("pdf", "svg", "png", "csv")),
    *(f"{RESULTS}/tables/{name}.{suffix}" for name in TABLES for suffix in ("csv", "md", "tex", "html")),
    *(f"{RESULTS}/scorecard.{suffix}" for suffix in ("md", "json", "html") if "scorecard" in WANTED),
]


rule summary:
    input:
        records=records_of("width_sweep", "width"),
        modules=STATISTICS,
    output:
        cells=SUMMARY,
        averages=f"{RESULTS}/summary/averages.parquet",
        gaps=f"{RESULTS}/summary/gaps.parquet",
    log:
        f"{RESULTS}/logs/summary.log",
    benchmark:
        f"{RESULTS}/benchmarks/summary.tsv"
    localrule: True
    conda:
        SOFTWARE
    shell:
        f"{PYTHON} -m figures summary --records {RESULTS} --out {{output.cells}} > {{log}} 2>&1"


# Of each experiment whose cells several artefacts show.
rule summary_of_cells:
    input:
        records=lambda wildcards: records_of(wildcards.experiment),
        modules=STATISTICS,
    output:
        cells=f"{RESULTS}/summary/{{experiment}}.parquet",
    wildcard_constraints:
        experiment=any_of(SHARED_CELLS),
    log:
        f"{RESULTS}/logs/summary/{{experiment}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/summary/{{experiment}}.tsv"
    localrule: True
    conda:
        SOFTWARE
    shell:
        f"{PYTHON} -m figures summary --experiment {{wildcards.experiment}} --records {RESULTS} --out {{output.cells}} "
        "> {log} 2>&1"


for name in FIGURES:

    rule:
        name:
            name
        input:
            records=read_by(name),
            cells=SUMMARY,
            shared=cells_read_by(name),
            modules=[f"figures/{name}.py", *SHARED_MODULES],
        output:
            pdf=f"{RESULTS}/figures/{name}.pdf",
            svg=report(
                f"{RESULTS}/figures/{name}.svg",
                caption=f"../../figures/captions/{name}.rst",
                category="Figures",
                labels={"figure": name.removeprefix("fig")},
            ),
            png=f"{RESULTS}/figures/{name}.png",
            csv=f"{RESULTS}/figures/{name}.csv",
        params:
            module=name,
            out=without_suffix("csv"),
        log:
            f"{RESULTS}/logs/{name}.log",
        benchmark:
            f"{RESULTS}/benchmarks/{name}.tsv"
        localrule: True
        conda:
            SOFTWARE
        shell:
            RENDER


for name in TABLES:

    rule:
        name:
            name
        input:
            records=read_by(name),
            cells=SUMMARY,
            shared=cells_read_by(name),
            modules=[f"figures/{name}.py", *SHARED_MODULES],
        output:
            html=report(
                f"{RESULTS}/tables/{name}.html",
                caption=f"../../figures/captions/{name}.rst",
                category="Tables",
                labels={"table": name.removeprefix("table")},
            ),
            csv=report(
                f"{RESULTS}/tables/{name}.csv",
                caption=f"../../figures/captions/{name}.rst",
                category="Tables as CSV",
                labels={"table": name.removeprefix("table")},
            ),
            md=f"{RESULTS}/tables/{name}.md",
            tex=f"{RESULTS}/tables/{name}.tex",
        params:
            module=name,
            out=without_suffix("csv"),
        log:
            f"{RESULTS}/logs/{name}.log",
        benchmark:
            f"{RESULTS}/benchmarks/{name}.tsv"
        localrule: True
        conda:
            SOFTWARE
        shell:
            RENDER


# The longest job goes first, or one core would wait for it at the end.
rule scorecard:
    input:
        records=read_by("scorecard"),
        cells=SUMMARY,
        shared=cells_read_by("scorecard"),
        modules=["figures/scorecard.py", *SHARED_MODULES],
    output:
        md=f"{RESULTS}/scorecard.md",
        json=f"{RESULTS}/scorecard.json",
        html=report(
            f"{RESULTS}/scorecard.html",
            caption="../../figures/captions/scorecard.rst",
            category="Scorecard",
            labels={"claims": "of the paper"},
        ),
    params:
        module="scorecard",
        out=without_suffix("md"),
    priority: 1
    log:
        f"{RESULTS}/logs/scorecard.log",
    benchmark:
        f"{RESULTS}/benchmarks/scorecard.tsv"
    localrule: True
    conda:
        SOFTWARE
    shell:
        RENDER
