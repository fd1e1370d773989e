"""The arrows of the design: who may import whom, and what stays free of torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "cast"

# Each part and the parts of the package it may import; what is pure comes first.
ALLOWED = {
    "errors": set(),
    "trees": {"errors"},
    "width": {"errors"},
    "models": {"errors", "trees", "width"},
    "verify": {"errors", "trees", "width", "models"},
    "decode": {"errors", "trees", "width", "models", "verify"},
    "serving": {"errors", "trees", "width", "models", "verify", "decode"},
    "training": {"errors", "trees", "width", "models", "verify", "decode", "experiments"},
    "experiments": {"errors", "trees", "width", "models", "verify", "decode", "serving"},
}
LIBRARY = {"torch", "transformers", "safetensors", "numpy", "huggingface_hub", "tqdm", "triton"}  # triton on CUDA only
TORCH_FREE = (
    "cast",
    "cast.errors",
    "cast.width",
    "cast.experiments.records",
    "cast.experiments.serving_statistics",
    "cast.experiments.statistics",
    "cast.experiments.replay_analyses",
    "cast.experiments.failures",
    "cast.experiments.files",
    "cast.experiments.partial",
    "cast.experiments.device",
    "cast.experiments.provenance",
    "cast.experiments.prompts",
)


def imported(path: Path) -> set[str]:
    """Absolute names of everything a module imports, at any depth, other than for type checking."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names if node.module == "cast"}
        elif isinstance(node, ast.ImportFrom):
            package = path.relative_to(PACKAGE.parent).parts[: -node.level] if PACKAGE in path.parents else ()
            names.add(".".join((*package, node.module or "")).rstrip("."))
    return names


def parts_of(names: set[str]) -> set[str]:
    return {name.split(".")[1] for name in names if name.startswith("cast.") and name.split(".")[1] in ALLOWED}


@pytest.mark.parametrize("part", ALLOWED)
def test_arrows_point_one_way(part):
    files = [PACKAGE / f"{part}.py"] if part == "errors" else sorted((PACKAGE / part).rglob("*.py"))
    for path in files:
        foreign = parts_of(imported(path)) - ALLOWED[part] - {part}
        assert not foreign, f"{path.relative_to(ROOT)} imports cast.{', cast.'.join(sorted(foreign))}"


def test_every_part_of_the_package_has_its_arrows():
    parts = {path.stem if path.is_file() else path.name for path in PACKAGE.iterdir()}
    assert parts - {"__init__", "__pycache__"} <= set(ALLOWED)


def test_the_library_needs_few_packages():
    own = {"cast", *sys.stdlib_module_names}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.relative_to(PACKAGE).parts[0] in ("experiments", "training"):
            continue
        foreign = {name.split(".")[0] for name in imported(path)} - own - LIBRARY
        assert not foreign, f"{path.relative_to(ROOT)} imports {', '.join(sorted(foreign))}"


def test_hydra_and_wandb_live_in_scripts():
    for folder in ("src", "figures"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            roots = {name.split(".")[0] for name in imported(path)}
            assert not roots & {"hydra", "omegaconf", "wandb", "snakemake"}, path.relative_to(ROOT)


def test_figures_read_records_and_nothing_else_of_the_package():
    allowed = {"errors", "width", "experiments"}
    for path in sorted((ROOT / "figures").rglob("*.py")):
        names = imported(path)
        assert parts_of(names) <= allowed, path.relative_to(ROOT)
        modules = {name.split(".")[2] for name in names if name.startswith("cast.experiments.")}
        assert modules <= {"records", "statistics", "serving_statistics", "files"}, path.relative_to(ROOT)
        assert not {name.split(".")[0] for name in names} & {"torch", "transformers", "jobs", "workflow"}


@pytest.mark.parametrize("folder", ["scripts", "workflow"])
def test_scripts_do_not_import_the_workflow_or_figures(folder):
    for path in sorted((ROOT / folder).rglob("*.py")):
        roots = {name.split(".")[0] for name in imported(path)}
        assert not roots & ({"workflow", "figures"} if folder == "scripts" else {"figures"}), path.relative_to(ROOT)


def test_torch_free_modules_load_no_torch():
    code = f"import sys, {', '.join(TORCH_FREE)}; sys.exit(bool({{'torch', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_decoder_loads_no_compiler():
    # torch's compiler takes as long to import as torch itself.
    code = "import sys, cast.decode, cast.serving.serve; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_rendering_and_the_rules_load_no_torch(tmp_path):
    commands = [
        ["-m", "figures", "--help"],
        ["-m", "snakemake", "-n", "-q", "all", "--nolock", "--config", "study=smoke"],
    ]
    for command in commands:
        finished = subprocess.run(
            [sys.executable, "-X", "importtime", *command],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert finished.returncode == 0, finished.stderr[-2000:]
        assert "| torch\n" not in finished.stderr
        assert "| transformers\n" not in finished.stderr
