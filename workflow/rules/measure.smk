# One rule for each experiment of the study, all alike: a script measures, its configuration says what, and the job
# claims the whole device. Code and commit are neither inputs nor params: changed library code measures nothing
# again, `snakemake -R width_sweep` does.

# A shell directive is evaluated when its job runs, long after the loop.
MEASURE = (
    f"{PYTHON} scripts/{{params.script}}.py {{params.arguments}} {BOOKKEEPING} out={{output.record}} 2>&1 | tee {{log}}"
)

for experiment in MATRIX.experiments:

    rule:
        name:
            experiment
        input:
            weights=ancient(of_job(experiment, weights)),
            sources=of_job(experiment, sources),
        output:
            **outputs(experiment),
        params:
            script=COMPOSED[MATRIX.of(experiment)[0]].experiment.script,
            config=of_job(experiment, configuration),
            contents=of_job(experiment, contents),
            arguments=of_job(experiment, arguments),
        threads: of_job(experiment, threads_of)
        resources:
            device=of_job(experiment, devices_of),
            gpu=of_job(experiment, gpus_of),
            runtime=of_job(experiment, minutes_of),
            **{resource: of_job(experiment, site_resource(key)) for resource, key in SITE_RESOURCES.items()},
        log:
            f"{RESULTS}/logs/{place(experiment)}.log",
        benchmark:
            f"{RESULTS}/benchmarks/{place(experiment)}.tsv"
        conda:
            SOFTWARE
        shell:
            MEASURE
