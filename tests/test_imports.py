"""What may import what: no GPU package anywhere, servers and trackers only where they belong, and downward only."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GPU_PACKAGES = [
    "triton", "transformer_engine", "transformer_engine_torch", "ray", "flash_attn", "flash_attn_interface", "xformers",
    "bitsandbytes", "apex", "deepspeed", "cupy", "cuda", "pynvml", "nvidia_ml_py", "torchao", "sageattention", "vllm",
    "flashinfer", "nunchaku", "fouroversix",
]  # fmt: skip
TRACKERS = ("prefect", "mlflow", "zarr")

BELOW = {
    "config": set(),
    "scenes": set(),
    "store": {"config"},
    "selection": {"config"},
    "objectives": {"config"},
    "analysis": {"config"},
    "sampling": {"config", "store"},
    "prompts": {"config", "store", "scenes", "sampling"},
    "rewards": {"config", "store", "scenes"},
    "features": {"config", "store", "rewards"},
    "models": {"config", "store", "sampling"},
    "engines": {"config", "store", "models"},
    "pretrain": {"config", "scenes", "models", "sampling"},
    "tracking": {"config", "store", "analysis"},
    "reports": {"config", "store", "analysis", "tracking"},
    "workers": {"config", "store", "sampling", "rewards", "features", "models", "engines", "objectives", "selection"},
}
BELOW["stages"] = set(BELOW) - {"pretrain", "scenes"}
BELOW["bench"] = BELOW["workers"] | {"workers", "tracking", "analysis"}
BELOW["studies"] = BELOW["stages"] | {"stages", "bench"}
PLAIN = {"engines/numerics", "objectives", "sampling", "selection", "analysis", "scenes"}
"""Packages of torch and numpy alone."""
PLAIN_PACKAGES = {"torch", "numpy", "scipy", "pydantic", "typing_extensions", "matplotlib"}
HOMES = {
    "prefect": ("solrl_tasks/stages/tasks.py", "solrl_tasks/tracking/"),
    "mlflow": ("solrl_tasks/tracking/",),
    "zarr": ("solrl_tasks/store/",),
}
"""Where the package may import servers, trackers and arrays; flows may import everything."""


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Every imported module, wherever in the file, and whether it is imported with the module itself."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    outermost = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in outermost) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            assert node.module is not None
            yield node.module, id(node) in outermost
            if node.module == "solrl_tasks":
                yield from ((f"solrl_tasks.{alias.name}", id(node) in outermost) for alias in node.names)


SOURCES = sorted((ROOT / "solrl_tasks").rglob("*.py"))


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_imports_point_downward():
    wrong = []
    for path in SOURCES:
        parts = path.relative_to(ROOT / "solrl_tasks").parts
        if len(parts) == 1:
            continue
        assert parts[0] in BELOW, f"{parts[0]} has no place among the layers yet"
        allowed = BELOW[parts[0]] | {parts[0]}
        for name, _ in imports(path):
            head, *rest = name.split(".")
            if head == "flows" or (head == "solrl_tasks" and rest and rest[0] not in allowed):
                wrong.append(f"{place(path)} imports {name}")
    assert wrong == []


def test_the_layers_have_no_cycle():
    order: list[str] = []
    left = {name: set(below) for name, below in BELOW.items()}
    while left:
        free = sorted(name for name, below in left.items() if below <= set(order))
        assert free, f"a cycle among {sorted(left)}"
        order += free
        left = {name: below for name, below in left.items() if name not in free}


@pytest.mark.parametrize("package", HOMES)
def test_servers_trackers_and_arrays_are_imported_where_they_belong(package):
    wrong = [
        f"{place(path)} imports {name}"
        for path in SOURCES
        for name, _ in imports(path)
        if name.split(".")[0] == package and not place(path).startswith(HOMES[package])
    ]
    assert wrong == []


def test_plain_packages_import_torch_and_numpy_alone():
    wrong = []
    for path in SOURCES:
        inner = place(path).removeprefix("solrl_tasks/")
        if not inner.startswith(tuple(f"{name}/" for name in PLAIN)):
            continue
        for name, _ in imports(path):
            head = name.split(".")[0]
            if head not in PLAIN_PACKAGES | {"solrl_tasks"} | set(sys.stdlib_module_names):
                wrong.append(f"{place(path)} imports {name}")
    assert wrong == []


def test_no_module_imports_a_gpu_package_with_itself():
    wrong = [
        f"{place(path)} imports {name}"
        for path in SOURCES
        for name, outermost in imports(path)
        if outermost and name.split(".")[0] in GPU_PACKAGES
    ]
    assert wrong == []


WALK = """
import importlib.util, pkgutil, sys
blocked = set(sys.argv[1].split(","))

class Hiding:
    # For it the blocked packages do not exist; raising would be something else than their absence.

    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in blocked else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
for name in blocked:
    assert importlib.util.find_spec(name) is None
import solrl_tasks
assert "torch" not in sys.modules, "the bare package loads torch"
for package in sys.argv[2].split(","):
    root = importlib.import_module(package)
    for found in pkgutil.walk_packages(root.__path__, f"{package}."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
for name in sys.argv[3].split(","):
    assert name not in sys.modules, f"{name} was imported"
"""


def walk(packages: list[str], blocked: list[str], absent: list[str]) -> None:
    command = [sys.executable, "-c", WALK, ",".join(blocked), ",".join(packages), ",".join(absent)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_every_module_is_imported_without_gpu_packages():
    walk(["solrl_tasks"], GPU_PACKAGES, ["none"])


def test_all_but_their_homes_are_imported_without_servers_trackers_and_arrays():
    """Neither directly nor through anything else."""
    heavy = ("stages", "studies", "tracking", "store", "workers", "pretrain", "bench")
    packages = [name for name in BELOW if name not in heavy]
    walk([f"solrl_tasks.{name}" for name in packages], [*GPU_PACKAGES, *TRACKERS], list(TRACKERS))
    walk(["solrl_tasks.store"], ["prefect", "mlflow"], ["prefect", "mlflow", "torch"])
