"""Benchmarks of the decoder: prints one JSON object.

    python scripts/bench.py                              # all of them, under 8 minutes on two cores
    python scripts/bench.py --only tree_building,memory
    python scripts/bench.py --dtype float32 --threads 1

Nothing else should run on the machine. It needs torch and transformers, not the study's packages. Each figure comes as
median, quartiles and number of repeats, with the project's goal for it where there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys


def main() -> None:
    arguments = _parser().parse_args()
    if arguments.threads < 1:
        sys.exit(f"error: --threads must be 1 or more, not {arguments.threads}")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # before torch is imported
        os.environ[name] = str(arguments.threads)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")

    import torch
    import transformers

    from cast.errors import CastError
    from jobs import speed

    torch.set_num_threads(arguments.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    names = arguments.only.split(",") if arguments.only else list(speed.BENCHES)
    unknown = [name for name in names if name not in speed.BENCHES]
    if unknown:
        sys.exit(f"error: unknown benchmark {unknown[0]!r}; benchmarks: {', '.join(speed.BENCHES)}")
    try:
        subject = speed.load(arguments.model, arguments.device, arguments.dtype)
        results = speed.run(subject, names, lambda line: print(line, file=sys.stderr, flush=True))
    except CastError as error:
        sys.exit(f"error: {error}")
    on_gpu = subject.device.type == "cuda"
    about = {
        "model": subject.pair.name if arguments.model != "embedded" else "embedded",
        "device": torch.cuda.get_device_name(subject.device) if on_gpu else _cpu_name(),
        "threads": arguments.threads,
        "dtype": str(subject.pair.dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    print(json.dumps(about | results, indent=2))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only",
        help="comma-separated, of: autoregressive, verification, explicit_mask, tree_building, loop_overhead, memory, "
        "probe",
    )
    parser.add_argument(
        "--model", default="auto", help="embedded, or random weights in the shape smollm2_135m, qwen3_4b or qwen3_8b"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--dtype", default="auto", help="auto, bfloat16 or float32")
    parser.add_argument("--threads", type=int, default=_usable_cores(), help="CPU threads (default: all cores)")
    return parser


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
