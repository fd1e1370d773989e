# One study from its checks to its scorecard.
#
#   snakemake                                    the embedded study
#   snakemake --config study=smoke               another one
#   snakemake -n -q rules                        what would run
#   snakemake --config study=embedded 'gpus=[]'  render what has been measured
#
# The study is a constant here and never a wildcard, so that a path of another study is not planned under this matrix.


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/render.smk"


rule all:
    default_target: True
    input:
        RECORDS,
        RENDERED,
