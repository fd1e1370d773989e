# Rules that measure. Each calls one script, and every timed job claims the whole device.
# Code and commit are neither inputs nor params: changed library code measures nothing again, `snakemake -R decode` does.


rule latency_probe:
    input:
        weights=ancient(checkpoints("latency_probe")),
    output:
        record=f"{RESULTS}/latency_probe/{{setting}}/{{domain}}.parquet",
        provenance=f"{RESULTS}/latency_probe/{{setting}}/{{domain}}.json",
    params:
        config=job_config("latency_probe"),
        checkpoints=checkpoint_digests("latency_probe"),
        arguments=job_arguments("latency_probe"),
    threads: job_threads("latency_probe")
    resources:
        device=1,
    log:
        f"{RESULTS}/logs/latency_probe/{{setting}}/{{domain}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/latency_probe/{{setting}}/{{domain}}.tsv"
    conda:
        SOFTWARE
    shell:
        f"{PYTHON} scripts/probe.py {{params.arguments}} {BOOKKEEPING} out={{output.record}} 2>&1 | tee {{log}}"


rule drafter_scores:
    input:
        weights=ancient(checkpoints("drafter_scores")),
    output:
        record=f"{RESULTS}/drafter_scores/{{setting}}/{{domain}}.parquet",
        provenance=f"{RESULTS}/drafter_scores/{{setting}}/{{domain}}.json",
    params:
        config=job_config("drafter_scores"),
        checkpoints=checkpoint_digests("drafter_scores"),
        prompts=prompts_sha256("drafter_scores"),
        arguments=job_arguments("drafter_scores"),
    threads: job_threads("drafter_scores")
    resources:
        device=1,
    log:
        f"{RESULTS}/logs/drafter_scores/{{setting}}/{{domain}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/drafter_scores/{{setting}}/{{domain}}.tsv"
    conda:
        SOFTWARE
    shell:
        f"{PYTHON} scripts/scores.py {{params.arguments}} {BOOKKEEPING} out={{output.record}} 2>&1 | tee {{log}}"


rule predict_width:
    input:
        latency=f"{RESULTS}/latency_probe/{{setting}}/random.parquet",
        scores=scores_record,
    output:
        f"{RESULTS}/width/{{setting}}.json",
    params:
        config=job_config("width"),
        arguments=job_arguments("width"),
    # Not timed itself, but nothing runs beside a timed job.
    resources:
        device=1,
    log:
        f"{RESULTS}/logs/width/{{setting}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/width/{{setting}}.tsv"
    conda:
        SOFTWARE
    shell:
        f"{PYTHON} scripts/predict.py {{params.arguments}} inputs.latency={{input.latency}} "
        "inputs.scores={input.scores} out={output} 2>&1 | tee {log}"


# No width prediction among its inputs: a sweep depends on its configuration only.
rule decode:
    input:
        weights=ancient(checkpoints("width_sweep")),
    output:
        record=f"{RESULTS}/width_sweep/{{setting}}/{{domain}}.parquet",
        provenance=f"{RESULTS}/width_sweep/{{setting}}/{{domain}}.json",
    params:
        config=job_config("width_sweep"),
        checkpoints=checkpoint_digests("width_sweep"),
        prompts=prompts_sha256("width_sweep"),
        arguments=job_arguments("width_sweep"),
    threads: job_threads("width_sweep")
    resources:
        device=1,
    log:
        f"{RESULTS}/logs/width_sweep/{{setting}}/{{domain}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/width_sweep/{{setting}}/{{domain}}.tsv"
    conda:
        SOFTWARE
    shell:
        f"{PYTHON} scripts/decode.py {{params.arguments}} {BOOKKEEPING} out={{output.record}} 2>&1 | tee {{log}}"
