"""env.json: what else decided a run, with every secret hidden."""

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

import pagedlab
from pagedlab.recorder import environment as environment_module
from pagedlab.recorder.environment import environment
from pagedlab.recorder.folder import write_run_folder
from tests.recorder.writer import numbered

ROOT = Path(__file__).resolve().parents[2]


def test_the_facts_are_those_of_this_machine_and_process():
    facts = environment(seed=7)
    assert set(facts) == {
        "pagedlab",
        "git_sha",
        "git_dirty",
        "python",
        "platform",
        "cpu",
        "cpu_count",
        "memory_bytes",
        "gpu",
        "packages",
        "plugins",
        "seed",
        "argv",
        "written_at",
    }
    assert facts["pagedlab"] == pagedlab.__version__
    assert facts["python"] == platform.python_version()
    assert facts["platform"] == platform.platform()
    assert facts["cpu"]
    assert facts["cpu_count"] == os.cpu_count()
    assert facts["memory_bytes"] > 2**20
    assert facts["seed"] == 7
    assert facts["packages"]["numpy"] == metadata.version("numpy")
    assert facts["packages"]["pyarrow"] == metadata.version("pyarrow")


def test_the_facts_are_json_and_the_run_folder_holds_them(tmp_path):
    facts = environment(seed=7)
    write_run_folder(tmp_path, "{}\n", facts, [numbered(1)], {})
    assert json.loads((tmp_path / "env.json").read_text()) == facts


def test_the_time_of_writing_is_in_utc():
    written = datetime.fromisoformat(environment(0)["written_at"])
    assert written.tzinfo == UTC
    assert written <= datetime.now(UTC)


def test_a_package_that_is_not_installed_has_no_version(monkeypatch):
    def version(name):
        if name == "triton":
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(environment_module.metadata, "version", version)
    packages = environment(0)["packages"]
    assert packages["triton"] is None
    assert {version for name, version in packages.items() if name != "triton"} == {"1.0"}


# ---- the command line ---------------------------------------------------------------------------------------------


def test_the_command_line_is_kept_with_its_secrets_hidden(monkeypatch):
    monkeypatch.setenv("PLANTED_TOKEN", "planted-value-of-the-environment")
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "pagedlab",
            "serve",
            "workload.max_tokens=128",
            "+tracker.api_key=planted-key",
            "workload.path=https://user:planted-password@host/file.json",
            "model.path=/data/planted-value-of-the-environment/model",
            "model=tiny_llama",
        ],
    )
    facts = environment(0)
    assert facts["argv"] == [
        "pagedlab",
        "serve",
        "workload.max_tokens=128",
        "+tracker.api_key=***",
        "workload.path=https://user:***@host/file.json",
        "model.path=/data/***/model",
        "model=tiny_llama",
    ]
    assert "planted" not in json.dumps(facts)


# ---- the commit ---------------------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with one commit, which the code seems to run from."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    for key, value in (("NAME", "a"), ("EMAIL", "a@b")):
        monkeypatch.setenv(f"GIT_AUTHOR_{key}", value)
        monkeypatch.setenv(f"GIT_COMMITTER_{key}", value)
    package = tmp_path / "pagedlab" / "__init__.py"
    package.parent.mkdir()
    package.write_text("")
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(pagedlab, "__file__", str(package))
    return tmp_path


def commit(facts):
    return facts["git_sha"], facts["git_dirty"]


def test_a_checkout_has_a_commit_and_is_clean_until_something_changes(checkout):
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=True)
    assert commit(environment(0)) == (head.stdout.strip(), False)
    (checkout / "new.py").write_text("")
    assert commit(environment(0)) == (head.stdout.strip(), True)


def test_an_installed_package_has_no_commit_even_inside_somebody_elses_checkout(checkout, monkeypatch):
    site = checkout / "site-packages" / "pagedlab"
    site.mkdir(parents=True)
    monkeypatch.setattr(pagedlab, "__file__", str(site / "__init__.py"))
    assert commit(environment(0)) == (None, None)


def test_without_git_there_is_no_commit(checkout, monkeypatch):
    monkeypatch.setenv("PATH", str(checkout / "nowhere"))
    assert commit(environment(0)) == (None, None)


def test_a_checkout_that_git_will_not_answer_for_is_unknown_and_not_clean(checkout):
    """As git refuses the checkout of another user."""
    (checkout / ".git" / "HEAD").write_text("not a head")
    assert commit(environment(0)) == (None, None)


def test_a_checkout_without_a_commit_has_none(checkout):
    subprocess.run(["git", "update-ref", "-d", "HEAD"], cwd=checkout, check=True)
    assert commit(environment(0)) == (None, None)


# ---- the machine --------------------------------------------------------------------------------------------------


def fake_torch(available):
    return SimpleNamespace(
        cuda=SimpleNamespace(is_available=lambda: available, get_device_name=lambda: "NVIDIA H200"),
    )


@pytest.mark.parametrize(("torch", "gpu"), [(None, None), (fake_torch(False), None), (fake_torch(True), "NVIDIA H200")])
def test_the_gpu_is_asked_of_torch_only_where_a_run_has_loaded_it(monkeypatch, torch, gpu):
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert environment(0)["gpu"] == gpu


def test_where_the_cpu_is_not_told_by_linux_the_platform_is_asked(monkeypatch):
    def unreadable(self, encoding=None):
        raise FileNotFoundError(self)

    monkeypatch.setattr(Path, "read_text", unreadable)
    monkeypatch.setattr(platform, "processor", lambda: "a processor")
    assert environment(0)["cpu"] == "a processor"


def test_asking_for_the_facts_imports_none_of_the_packages():
    program = (
        "import sys; from pagedlab.recorder.environment import environment; environment(0); "
        "print([name for name in ('torch', 'transformers', 'wandb', 'triton', 'tokenizers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
