"""Rules of the house that no other tool checks."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(path for room in ("pagedlab", "kernels", "experiments") for path in (ROOT / room).rglob("*.py"))


def names_read(path):
    return {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize("folder", ["kernels", "experiments", "tests"])
def test_folders_whose_names_others_use_are_no_packages(folder):
    """transformers imports a package `kernels` that it finds; a namespace folder it leaves alone."""
    assert not (ROOT / folder / "__init__.py").exists()


def test_the_true_output_length_is_read_by_executors_and_oracles_alone():
    readers = {path.relative_to(ROOT).as_posix() for path in SOURCES if "true_output_tokens" in names_read(path)}
    assert readers == {"pagedlab/executor/base.py", "pagedlab/allocator/oracle.py"}


def test_the_oracle_is_asked_by_allocators_that_say_so():
    from pagedlab.allocator.base import ALLOCATORS

    asking = {
        name
        for name in ALLOCATORS
        if "oracle_output_tokens" in (ROOT / "pagedlab" / "allocator" / f"{name}.py").read_text()
    }
    assert asking == {name for name in ALLOCATORS if ALLOCATORS[name].needs_true_length}


# Unpickles bytes that it has made itself, and that never were outside of its process.
OWN_PICKLES = {ROOT / "pagedlab" / "sweep" / "compose.py"}


def test_nothing_unpickles_evaluates_or_trusts_remote_code():
    forbidden = {"eval", "exec", "torch.load", "pickle.load", "pickle.loads", "yaml.load"}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in forbidden - ({"pickle.loads"} if path in OWN_PICKLES else set()), path
                for word in node.keywords:
                    if word.arg == "trust_remote_code":
                        assert ast.unparse(word.value) == "False", path


def test_no_config_names_a_target_to_run():
    for path in (ROOT / "conf").rglob("*.yaml"):
        assert "_target_" not in path.read_text(), path


def test_validation_never_asserts():
    """`python -O` drops assert statements."""
    for path in SOURCES:
        assert not [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assert)], path


@pytest.mark.parametrize("module", ["pagedlab.engine", "pagedlab.run", "pagedlab.workload.sharegpt"])
def test_the_engine_and_its_assembly_import_no_torch(module):
    program = f"import sys, {module}; print([m for m in ('torch', 'transformers', 'wandb') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_simulation_is_served_without_torch_or_transformers(tmp_path):
    """Nor what else takes long to import: from the command to the first request is under a second of processor time."""
    program = f"""
import sys
from pagedlab.experiments.serve import main

sys.argv = ["serve", "executor=simulated", "hardware=a100_40gb", "model=opt_13b", "workload=synthetic"]
sys.argv += ["workload.num_requests=2", "replicas=2", "router=prefix_aware", "hydra.run.dir={tmp_path}"]
main()
slow = ("torch", "transformers", "tokenizers", "wandb", "numba", "triton", "scipy", "matplotlib")
print([module for module in slow if module in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert (tmp_path / "summary.json").is_file()
