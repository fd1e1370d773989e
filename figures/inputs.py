"""Which records an artefact reads, and what of them is summarised once for several artefacts.

Snakemake's rules are made from this, so nothing is imported here.
"""

from __future__ import annotations

# Experiments of which several artefacts show the same cells, which are therefore resampled once: the function of
# cast.experiments.statistics, and the column of which each value is summarised by itself.
SUMMARISED: dict[str, tuple[str, str | None]] = {
    "block_length": ("cell_summary", "block_size"),
    "drafter_comparison": ("cell_summary", None),
    "generation_length": ("cell_summary", "max_new_tokens"),
    "repeated_panel": ("repeat_summary", None),
    "sampled_decoding": ("seed_summary", None),
}

# What an artefact reads beside the width sweep, the probe and the predicted widths; one that is not named here may read
# every record of the study.
READS: dict[str, tuple[str, ...]] = {
    "fig1": ("worked_example",),
    "fig2": (),
    "fig3": (),
    "fig4": ("replay", "drafter_scores"),
    "fig5": (),
    "fig6": ("width_tax",),
    "fig7": ("serving_goodput",),
    "fig_total_variation": ("total_variation",),
    "table1": ("drafter_comparison", "drafter_comparison_sampled", "sampled_decoding"),
    "table2": (),
    "table3": ("repeated_panel", "drafter_comparison", "sampled_decoding", "drafter_comparison_sampled"),
    "table4": ("drafter_comparison",),
    "table5": (),
    "table6": ("prefix_probe",),
    "table7": (),
    "table8": (),
    "table9": (),
    "table10": ("sampled_decoding",),
    "table11": ("hybrid_probe",),
    "table12": (),
    "table13": ("drafter_comparison",),
    "table14": ("generation_length", "long_prefix"),
    "table15": ("block_length", "drafter_comparison"),
    "table16": ("drafter_comparison",),
    "table17": ("drafter_comparison",),
    "table_continuous_batching": ("continuous_batching",),
    "table_dart": ("dart_replay",),
    "table_equivalence": ("greedy_equivalence",),
    "table_padding": ("serving_goodput",),
    "table_replay": ("replay",),
    "table_sampling_under_load": ("sampling_under_load",),
    "table_serving": ("serving_goodput",),
    "table_shared_device": ("shared_device",),
    "table_total_variation": ("total_variation",),
}
