"""The config: every option composes, one name means one thing, and every bad value is one line that names it."""

import ast
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from omegaconf import OmegaConf

from pagedlab.allocator.base import ALLOCATORS
from pagedlab.config import load_settings, parse_bytes
from pagedlab.core.errors import ConfigError, PagedlabError
from pagedlab.eviction.base import EVICTIONS
from pagedlab.executor.base import EXECUTORS
from pagedlab.kernels.base import KERNELS
from pagedlab.preemption.base import PREEMPTIONS
from pagedlab.preemption.victim.base import VICTIMS
from pagedlab.prefix_cache.base import PREFIX_CACHES
from pagedlab.replay.config import load_replay_settings
from pagedlab.router.base import ROUTERS
from pagedlab.scheduler.admission.base import ADMISSIONS
from pagedlab.scheduler.batching.base import BATCHINGS
from pagedlab.scheduler.order.base import ORDERS
from pagedlab.scheduler.predictor.base import PREDICTORS
from pagedlab.settings import OPTIONS, TRACES, Settings
from pagedlab.tracker.base import TRACKERS
from pagedlab.workload.base import WORKLOADS
from tests.config.composed import composed, overridden, said_of, settings_of

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
CHOICES = sorted((path.parent.name, path.stem) for path in CONF.glob("*/*.yaml"))
STUDIES = {"experiment", "study"}  # whole runs and sweeps of them, not choices
GROUPS = {group for group, _ in CHOICES} - STUDIES
_REPLAYED_ONLY = set(TRACES) - set(OPTIONS["workload"])
REPLAYED = [choice for choice in CHOICES if choice[0] == "eviction" or choice[1] in TRACES]
SERVED = [choice for choice in CHOICES if choice[0] not in STUDIES and choice not in REPLAYED]

# What an option cannot do without.
NEEDS = {("preemption", "none"): ("scheduler=reserve_output",), ("scheduler", "lpm"): ("prefix_cache=radix",)}
NEEDS |= {("router", name): ("executor=simulated", "replicas=2") for name in ROUTERS}


# ---- every option -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("group", "name"), SERVED)
def test_every_option_composes_with_the_defaults_and_is_what_it_is_called(group, name):
    needs = ("executor=simulated",) if group == "hardware" else ()  # a real run knows no other device than its own
    needs += NEEDS.get((group, name), ())
    settings = load_settings(composed(f"{group}={name}", *needs, base=()))
    assert getattr(settings, group).name == name


@pytest.mark.parametrize(("group", "name"), REPLAYED)
def test_every_option_of_a_replay_composes_with_its_defaults(group, name):
    settings = load_replay_settings(composed(f"{group}={name}", base=(), command="replay"))
    assert getattr(settings, group).name == name


@pytest.mark.parametrize("name", sorted(_REPLAYED_ONLY))
def test_a_trace_of_block_ids_is_not_served(name):
    with pytest.raises(ConfigError, match=f"workload={name}: a trace of block ids, which only `pagedlab replay` takes"):
        load_settings(composed(f"workload={name}", base=()))


@pytest.mark.parametrize("name", [name for group, name in CHOICES if group == "experiment"])
def test_every_job_of_every_experiment_composes(name):
    study = yaml.safe_load((CONF / "experiment" / f"{name}.yaml").read_text())
    axes = study.get("hydra", {}).get("sweeper", {}).get("params", {})
    jobs = [
        [f"{key}={value}" for key, value in zip(axes, job, strict=True)] for job in product(*map(values, axes.values()))
    ]
    refused = 0
    for job in jobs:
        try:
            load_settings(composed(f"+experiment={name}", *job, base=()))
        except ConfigError:
            if not study.get("skip_refused"):
                raise
            refused += 1
    assert refused < len(jobs)


def values(swept):
    return [value.strip() for value in str(swept).split(",")]


def test_the_default_run_is_the_one_of_the_readme():
    settings = load_settings(composed(base=()))
    assert (settings.model.name, settings.allocator.name, settings.block_size) == ("smollm2_135m", "paged", 16)
    assert (settings.scheduler.name, settings.executor.name, settings.kernel.name) == ("chunked", "torch", "auto")
    assert (settings.workload.name, settings.tracker.name, settings.preemption.name) == (
        "sharegpt",
        "none",
        "recompute",
    )
    assert (settings.kv_num_blocks, settings.kv_bytes, settings.kv_fraction) == (None, None, None)
    assert settings.sampling.ignore_eos is True


def test_the_groups_of_the_config_are_those_of_the_settings():
    top = yaml.safe_load((CONF / "config.yaml").read_text())
    chosen = {group for entry in top["defaults"] if isinstance(entry, dict) for group in entry if " " not in group}
    assert chosen == GROUPS
    assert chosen | set(top) - {"defaults", "hydra"} == set(Settings.__dataclass_fields__)


# ---- one rule for names -------------------------------------------------------------------------------------------

REGISTRIES = {
    "allocator": (ALLOCATORS, "pagedlab/allocator"),
    "eviction": (EVICTIONS, "pagedlab/eviction"),
    "executor": (EXECUTORS, "pagedlab/executor"),
    "kernel": (KERNELS, "kernels"),
    "preemption": (PREEMPTIONS, "pagedlab/preemption"),
    "prefix_cache": (PREFIX_CACHES, "pagedlab/prefix_cache"),
    "workload": (WORKLOADS, "pagedlab/workload"),
    "router": (ROUTERS, "pagedlab/router"),
    "tracker": (TRACKERS, "pagedlab/tracker"),
}
SEAMS = {
    "scheduler.order": (ORDERS, "pagedlab/scheduler/order"),
    "scheduler.batching": (BATCHINGS, "pagedlab/scheduler/batching"),
    "scheduler.admission": (ADMISSIONS, "pagedlab/scheduler/admission"),
    "scheduler.predictor": (PREDICTORS, "pagedlab/scheduler/predictor"),
    "preemption.victim": (VICTIMS, "pagedlab/preemption/victim"),
}


def registered_in(folder):
    """File name -> the names that are registered in it, read from the source: nothing is imported for it."""
    found = {}
    for path in (ROOT / folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            for decorator in getattr(node, "decorator_list", []):
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith(".register"):
                    found.setdefault(path.stem, []).append(ast.literal_eval(decorator.args[0]))
    return found


@pytest.mark.parametrize("group", REGISTRIES)
def test_an_option_has_one_name_in_its_registry_its_module_and_its_config(group):
    registry, folder = REGISTRIES[group]
    names = set(registry)
    assert registered_in(folder) == {name: [name] for name in names}
    chosen = {"kernel": {"auto"}, "prefix_cache": {"none"}, "router": {"none"}}.get(
        group, set()
    )  # one of the others by device; without
    assert {name for choice, name in CHOICES if choice == group} - chosen - _REPLAYED_ONLY == names


@pytest.mark.parametrize("seam", SEAMS)
def test_an_option_of_a_seam_has_one_name_in_its_registry_and_its_module(seam):
    registry, folder = SEAMS[seam]
    assert registered_in(folder) == {name: [name] for name in registry}


@pytest.mark.parametrize(("group", "name"), CHOICES)
def test_a_config_file_says_its_own_name(group, name):
    if group not in STUDIES:
        said = yaml.safe_load((CONF / group / f"{name}.yaml").read_text())
        assert said.get(group, said)["name"] == name  # a system is a file of all groups


@pytest.mark.parametrize("group", OPTIONS)
def test_groups_whose_options_differ_have_settings_for_each_option(group):
    assert set(OPTIONS[group]) - {"none"} == set(REGISTRIES[group][0]) - {"none"}


@pytest.mark.parametrize("path", SEAMS)
def test_every_option_of_a_seam_can_be_chosen(path):
    for name in SEAMS[path][0]:
        node = settings_of(f"{path}={name}", groups=("prefix_cache=radix",))
        for part in path.split("."):
            node = getattr(node, part)
        assert node == name


# ---- values that are refused --------------------------------------------------------------------------------------

BLOCKS_OFF = "kv_num_blocks=null"
BYTES = "expected a number of bytes, or a number with KiB, MiB, GiB, KB, MB or GB"
BUDGETS = "expected at most one of kv_num_blocks, kv_bytes, kv_fraction"

# What is given, without what QUICK gives, and the line that is said of it.
BAD = [
    # Keys that are not there: mistyped, of another option, on another level.
    ("block_sise=16", "block_sise: no such setting, did you mean block_size?"),
    ("+block_sise=16", "block_sise: no such setting, did you mean block_size?"),
    ("++block_sise=16", "block_sise: no such setting, did you mean block_size?"),
    (
        "+foo.bar=1",
        "foo: no such setting, expected one of allocator, allow_parallel_timing, audit_every, block_size, ",
    ),
    ("sampling.temprature=1", "sampling.temprature: no such setting, did you mean temperature?"),
    ("+sampling.x=1", "sampling.x: no such setting, expected one of beam_width, best_of, early_stopping, ignore_eos, "),
    ("workload.arival.rate=2", "workload.arival: no such setting, did you mean arrival?"),
    ("+workload.arrival.raet=2", "workload.arrival.raet: no such setting, did you mean rate?"),
    ("workload.arrival.raet=2", "workload.arrival.raet: no such setting, did you mean rate?"),
    ("+workload.prompt.hgih=2", "workload.prompt.hgih: no such setting, did you mean high?"),
    (
        "+model.x=1",
        "model.x: no such setting, expected one of config, dtype, name, optimize, path, provenance, revision, seed, "
        "source",
    ),
    ("+allocator.x=1", "allocator.x: no such setting, expected one of name"),
    ("+executor.x.y=3", "executor.x: no such setting, expected one of copy_s, eos_token_id, name, step_s, "),
    ("executor.device=cpu", "executor.device: no such setting here, only with executor=torch"),
    ("+executor.device=cpu", "executor.device: no such setting, expected one of copy_s, eos_token_id, name, "),
    ("tracker.mode=online", "tracker.mode: no such setting here, only with tracker=wandb"),
    ("workload.multi_turn=true", "workload.multi_turn: no such setting here, only with workload=sharegpt"),
    ("model.config.zzz=1", "model.config.zzz: no such setting here"),
    ("block_size.x=1", "block_size.x: no such setting here"),
    ("executor.name=torch", "executor.vocab_size: no such setting, expected one of cuda_graphs, device, name, threads"),
    # Keys that are gone, or were never filled in.
    ("~block_size", "block_size: no value given"),
    ("~sampling", "sampling: no value given"),
    ("~scheduler.order", "scheduler.order: no value given"),
    ("~executor.name", "executor=None: no such option, expected one of torch, fingerprint"),
    ("seed=???", "seed: no value given"),
    ("seed=${nope}", "seed: Interpolation key 'nope' not found"),
    (
        "seed=${oc.env:NOT_SET_ANYWHERE}",
        "seed: KeyError raised while resolving interpolation: \"Environment variable '",
    ),
    # Names that are no option.
    (
        "allocator.name=nope",
        "allocator=nope: no such option, expected one of paged, reserve_max, power_of_two, oracle, ",
    ),
    ("executor.name=nope", "executor=nope: no such option, expected one of torch, fingerprint"),
    ("executor.name=[a]", "executor=['a']: no such option, expected one of torch, fingerprint"),
    ("executor.name={a:1}", "executor={'a': 1}: no such option, expected one of torch, fingerprint"),
    ("workload.name=nope", "workload=nope: no such option, expected one of sharegpt, synthetic"),
    ("tracker.name=null", "tracker=None: no such option, expected one of none, wandb, trackio"),
    ("kernel.name=nope", "kernel=nope: no such option, expected one of reference, torch, cpu, triton, cupy"),
    ("preemption.name=swop", "preemption=swop: no such option, expected one of recompute, swap, adaptive, none"),
    ("preemption.swap_space=1GiB", "preemption.swap_space: no such setting here, only with preemption=swap"),
    ("preemption.victim=first", "preemption.victim=first: no such option, expected one of last_arrived, lowest_"),
    ("scheduler.order=lifo", "scheduler.order=lifo: no such option, expected one of fcfs, priority, sjf, srtf, "),
    ("scheduler.batching=none", "scheduler.batching=none: no such option, expected one of prefill_first, chunked"),
    ("scheduler.admission=all", "scheduler.admission=all: no such option, expected one of on_demand, one_at_a_time"),
    ("scheduler.predictor=guess", "scheduler.predictor=guess: no such option, expected one of oracle, noisy, rank"),
    ("model.dtype=float8", "model.dtype=float8: expected one of float32, bfloat16, float16, float64"),
    ("model.source=ftp", "model.source=ftp: no such source, expected one of smollm2, path, random"),
    (
        "workload.prompt.distribution=zipf",
        "workload.prompt.distribution=zipf: expected one of fixed, uniform, lognormal",
    ),
    ("workload.arrival.process=burst", "workload.arrival.process=burst: expected one of at_once, constant, poisson, "),
    # An integer is wanted.
    ("block_size=abc", "block_size: Value 'abc' of type 'str' could not be converted to Integer"),
    ("block_size=1.5", "block_size: Value '1.5' of type 'float' could not be converted to Integer"),
    ("block_size=true", "block_size: Value 'True' of type 'bool' could not be converted to Integer"),
    ("block_size=null", "block_size: Incompatible value 'None' for field of type 'int'"),
    ("block_size=[1]", "block_size: Value '[1]' of type 'ListConfig' could not be converted to Integer"),
    ("block_size={a:1}", "block_size: Value '{'a': 1}' of type 'DictConfig' could not be converted to Integer"),
    ("block_size=''", "block_size: Value '' of type 'str' could not be converted to Integer"),
    ("seed=nan", "seed: Value 'nan' of type 'float' could not be converted to Integer"),
    ("max_model_len=inf", "max_model_len: Value 'inf' of type 'float' could not be converted to Integer"),
    ("workload.num_requests=1e3", "workload.num_requests: Value '1000.0' of type 'float' could not be converted to In"),
    # A number, a bool, a text, a list, a group of settings is wanted.
    ("scheduler.watermark=x", "scheduler.watermark: Value 'x' of type 'str' could not be converted to Float"),
    ("scheduler.watermark=true", "scheduler.watermark: Value 'True' of type 'bool' could not be converted to Float"),
    ("scheduler.watermark=null", "scheduler.watermark: Incompatible value 'None' for field of type 'float'"),
    ("progress=maybe", "progress: Value 'maybe' is not a valid bool (type str)"),
    ("progress=null", "progress: Incompatible value 'None' for field of type 'bool'"),
    ("progress=3", "progress=3: expected true or false"),
    ("sampling.ignore_eos=2", "sampling.ignore_eos=2: expected true or false"),
    ("sampling.ignore_eos=-1", "sampling.ignore_eos=-1: expected true or false"),
    ("scheduler.order=null", "scheduler.order: Incompatible value 'None' for field of type 'str'"),
    ("model.path=[a]", "model.path: Cannot convert 'ListConfig' to string: '['a']'"),
    ("sampling=3", "sampling: Invalid type assigned: int is not a subclass of SamplingSettings. value: 3"),
    ("sampling=null", "sampling: field 'sampling' is not Optional"),
    ("hardware.tensor_parallel=0", "hardware.tensor_parallel=0: expected at least 1"),
    ("hardware.gemm_memory_efficiency=1.2", "hardware.gemm_memory_efficiency=1.2: expected more than 0 and at most 1"),
    ("hardware.bandwidth_gb_s=0", "hardware.bandwidth_gb_s=0.0: expected at least 1e-09"),
    ("hardware.host_step_us=nan", "hardware.host_step_us=nan: expected at least 0"),
    ("model.config=3", "model.config: Cannot assign int to Dict[str, Any]"),
    ("model.config=null", "model.config: field 'model.config' is not Optional"),
    (
        "workload.prompt=fixed",
        "workload.prompt: Invalid type assigned: str is not a subclass of LengthSettings. value: fi",
    ),
    ("workload.prompt=[1]", "Error merging override workload.prompt=[1]: Cannot merge DictConfig with ListConfig"),
    ("workload.arrival=null", "workload.arrival: field 'workload.arrival' is not Optional"),
    # Out of range.
    ("block_size=0", "block_size=0: expected at least 1 and at most 256"),
    ("block_size=257", "block_size=257: expected at least 1 and at most 256"),
    ("block_size=-16", "block_size=-16: expected at least 1 and at most 256"),
    ("seed=-1", "seed=-1: expected at least 0 and at most 9223372036854775807"),
    ("seed=9223372036854775808", "seed=9223372036854775808: expected at least 0 and at most 9223372036854775807"),
    ("model.seed=-1", "model.seed=-1: expected at least 0 and at most 9223372036854775807"),
    ("model.seed=18446744073709551616", "model.seed=18446744073709551616: expected at least 0 and at most "),
    ("audit_every=-1", "audit_every=-1: expected at least 0"),
    ("max_model_len=0", "max_model_len=0: expected at least 1"),
    ("max_model_len=513", "max_model_len=513: model tiny_llama has 512 positions"),
    ("scheduler.max_num_seqs=0", "scheduler.max_num_seqs=0: expected at least 1 and at most 65536"),
    ("scheduler.max_num_seqs=65537", "scheduler.max_num_seqs=65537: expected at least 1 and at most 65536"),
    ("scheduler.max_num_batched_tokens=0", "scheduler.max_num_batched_tokens=0: expected at least 1"),
    ("scheduler.watermark=-0.1", "scheduler.watermark=-0.1: expected at least 0 and at most 1"),
    ("scheduler.watermark=1.01", "scheduler.watermark=1.01: expected at least 0 and at most 1"),
    ("scheduler.predictor_sigma=-1", "scheduler.predictor_sigma=-1.0: expected at least 0 and at most 100"),
    ("scheduler.lpm_max_waiting=-1", "scheduler.lpm_max_waiting=-1: expected at least 0"),
    ("scheduler.mlfq.levels=0", "scheduler.mlfq.levels=0: expected at least 1 and at most 64"),
    ("scheduler.mlfq.quantum=0", "scheduler.mlfq.quantum=0: expected at least 1"),
    ("scheduler.mlfq.ageing_s=nan", "scheduler.mlfq.ageing_s=nan: expected at least 0, and finite"),
    ("scheduler.mlfq.x=1", "scheduler.mlfq.x: no such setting, expected one of ageing_s, levels, quantum"),
    ("scheduler.vtc.input_weight=0", "scheduler.vtc.input_weight=0.0: expected more than 0, and finite"),
    ("scheduler.vtc.output_weight=inf", "scheduler.vtc.output_weight=inf: expected more than 0, and finite"),
    ("scheduler.estimated_peak.initial=1.1", "scheduler.estimated_peak.initial=1.1: expected at least 0 and at most 1"),
    (
        "scheduler.estimated_peak.minimum=0.8",
        "scheduler.estimated_peak.minimum=0.8: expected at least 0 and at most 0.7",
    ),
    ("scheduler.estimated_peak.decay_steps=0", "scheduler.estimated_peak.decay_steps=0: expected at least 1"),
    ("scheduler.estimated_peak.retract_steps=-1", "scheduler.estimated_peak.retract_steps=-1: expected at least 0"),
    ("slo.ttft_s=-1", "slo.ttft_s=-1.0: expected at least 0, and finite"),
    ("slo.tpot_s=nan", "slo.tpot_s=nan: expected at least 0, and finite"),
    ("workload.clients=0", "workload.clients=0: expected a whole number from 1 to "),
    ("workload.clients=257", "workload.clients=257: expected at most 256"),
    ("workload.priorities=[]", "workload.priorities=[]: expected at least one whole number"),
    ("workload.priorities=[x]", "workload.priorities[0]: Value 'x' of type 'str' could not be converted to Integer"),
    ("sampling.temperature=-1", "sampling.temperature=-1.0: expected at least 0, and finite"),
    ("sampling.top_p=0", "sampling.top_p=0.0: expected more than 0 and at most 1"),
    ("sampling.top_p=1.01", "sampling.top_p=1.01: expected more than 0 and at most 1"),
    ("sampling.top_k=-1", "sampling.top_k=-1: expected at least 0 and at most 2147483647"),
    ("sampling.top_k=99999999999999999999", "sampling.top_k=99999999999999999999: expected at least 0 and at most "),
    ("executor.vocab_size=1", "executor.vocab_size=1: expected at least 2 and at most 2147483647"),
    ("executor.eos_token_id=-1", "executor.eos_token_id=-1: expected at least 0 and at most 49999"),
    ("executor.eos_token_id=50000", "executor.eos_token_id=50000: expected at least 0 and at most 49999"),
    ("executor.step_s=-1", "executor.step_s=-1.0: expected at least 0 and at most 1000000.0"),
    ("executor.token_s=-1", "executor.token_s=-1.0: expected at least 0 and at most 1000000.0"),
    ("executor.step_s=0 executor.token_s=0", "executor.step_s=0.0 and executor.token_s=0.0: expected a step to take "),
    ("executor.step_s=1e-310 executor.token_s=0", "executor.step_s=1e-310 and executor.token_s=0.0: expected a step "),
    ("executor.step_s=1e308", "executor.step_s=1e+308: expected at least 0 and at most 1000000.0"),
    ("workload.num_requests=0", "workload.num_requests=0: expected a whole number from 1 to 16777216"),
    ("workload.max_tokens=0", "workload.max_tokens=0: expected a whole number from 1 to 16777216, or null for each "),
    ("workload.prompt.low=61", "workload.prompt.low=61: expected at most workload.prompt.high=60"),
    (
        "workload.prompt.sigma=0",
        "workload.prompt.sigma=0.0: expected a number from 1e-06 to 1.67772e+07, which lognorm",
    ),
    ("workload.shared_prefix_groups=0", "workload.shared_prefix_groups=0: expected a whole number from 1 to 16777216"),
    ("model.config.hidden_size=0", "config: hidden_size=0, expected a whole number of at least 1"),
    # Numbers that are none, or have no end.
    ("scheduler.watermark=nan", "scheduler.watermark=nan: expected at least 0 and at most 1"),
    ("scheduler.watermark=inf", "scheduler.watermark=inf: expected at least 0 and at most 1"),
    ("sampling.temperature=nan", "sampling.temperature=nan: expected at least 0, and finite"),
    ("sampling.temperature=inf", "sampling.temperature=inf: expected at least 0, and finite"),
    ("sampling.temperature=-inf", "sampling.temperature=-inf: expected at least 0, and finite"),
    ("sampling.top_p=nan", "sampling.top_p=nan: expected more than 0 and at most 1"),
    ("sampling.n=0", "sampling.n=0: expected at least 1 and at most 65536"),
    ("sampling.n=4", "sampling.n=4 with sampling.temperature=0.0: all outputs would be one, expected a higher one"),
    ("sampling.best_of=4", "sampling.best_of=4 with sampling.temperature=0.0: all outputs would be one"),
    ("sampling.n=4 sampling.best_of=3 sampling.temperature=1", "sampling.best_of=3: expected at least sampling.n=4"),
    ("sampling.best_of=0", "sampling.best_of=0: expected at least 1 and at most 65536"),
    ("sampling.n=300 sampling.temperature=1", "sampling.n=300: expected at most scheduler.max_num_seqs=256"),
    (
        "sampling.best_of=9 sampling.temperature=1 scheduler.max_num_batched_tokens=8",
        "sampling.best_of=9: expected at most scheduler.max_num_batched_tokens=8",
    ),
    ("sampling.beam_width=0", "sampling.beam_width=0: expected at least 1 and at most 65536"),
    ("sampling.beam_width=300", "sampling.beam_width=300: expected at most scheduler.max_num_seqs=256"),
    (
        "sampling.beam_width=3 sampling.n=2",
        "sampling.n=2 with sampling.beam_width=3: a beam search answers with its be",
    ),
    ("sampling.beam_width=3 sampling.best_of=3", "sampling.best_of=3 with sampling.beam_width=3: a beam search answer"),
    ("sampling.beam_width=3 sampling.temperature=1", "sampling.beam_width=3 with sampling.temperature=1.0, top_k=0, "),
    ("sampling.beam_width=3 sampling.top_k=5", "sampling.beam_width=3 with sampling.temperature=0.0, top_k=5, top_p=1"),
    (
        "sampling.length_penalty=2",
        "sampling.length_penalty=2.0 and sampling.early_stopping=false: of beam search alone",
    ),
    (
        "sampling.early_stopping=never",
        "sampling.length_penalty=1.0 and sampling.early_stopping=never: of beam search a",
    ),
    ("sampling.beam_width=3 sampling.length_penalty=nan", "sampling.length_penalty=nan: expected at least -100 and at"),
    ("sampling.early_stopping=soon", "sampling.early_stopping=soon: expected one of false, true, never"),
    (
        "sampling.beam_width=3 executor.vocab_size=5",
        "sampling.beam_width=3 looks at 6 tokens a step, the vocabulary has 5",
    ),
    ("executor.step_s=nan", "executor.step_s=nan: expected at least 0 and at most 1000000.0"),
    ("executor.step_s=inf", "executor.step_s=inf: expected at least 0 and at most 1000000.0"),
    ("executor.token_s=nan", "executor.token_s=nan: expected at least 0 and at most 1000000.0"),
    ("executor.token_s=inf", "executor.token_s=inf: expected at least 0 and at most 1000000.0"),
    (f"kv_fraction=nan {BLOCKS_OFF}", "kv_fraction=nan: expected more than 0 and less than 1"),
    (f"kv_fraction=inf {BLOCKS_OFF}", "kv_fraction=inf: expected more than 0 and less than 1"),
    ("workload.prompt.mean=nan", "workload.prompt.mean=nan: expected a number from 1 to 1.67772e+07, which lognormal"),
    ("workload.prompt.mean=inf", "workload.prompt.mean=inf: expected a number from 1 to 1.67772e+07, which lognormal"),
    ("workload.arrival.process=poisson workload.arrival.rate=nan", "workload.arrival.rate=nan: expected a number from"),
    # The KV budget.
    ("kv_bytes=1GiB", f"kv_num_blocks=32 and kv_bytes=1GiB: {BUDGETS}"),
    ("kv_fraction=0.5", f"kv_num_blocks=32 and kv_fraction=0.5: {BUDGETS}"),
    ("kv_bytes=1GiB kv_fraction=0.5", f"kv_num_blocks=32 and kv_bytes=1GiB and kv_fraction=0.5: {BUDGETS}"),
    ("kv_num_blocks=0", "kv_num_blocks=0: expected at least 1 and at most 2147483647"),
    ("kv_num_blocks=-3", "kv_num_blocks=-3: expected at least 1 and at most 2147483647"),
    ("kv_num_blocks=2147483648", "kv_num_blocks=2147483648: expected at least 1 and at most 2147483647"),
    (f"kv_fraction=0 {BLOCKS_OFF}", "kv_fraction=0.0: expected more than 0 and less than 1"),
    (f"kv_fraction=1 {BLOCKS_OFF}", "kv_fraction=1.0: expected more than 0 and less than 1"),
    (f"kv_fraction=1e-300 {BLOCKS_OFF}", "kv_fraction=1e-300: less than one block of 16 slots, which takes 8192 bytes"),
    (f"kv_bytes=0 {BLOCKS_OFF}", "kv_bytes=0: less than one block of 16 slots, which takes 8192 bytes"),
    (f"kv_bytes=8191 {BLOCKS_OFF}", "kv_bytes=8191: less than one block of 16 slots, which takes 8192 bytes"),
    (f"kv_bytes=9999999GiB {BLOCKS_OFF}", "kv_bytes=9999999GiB: 1310719868928 blocks take"),
    (f"kv_bytes=1{'0' * 400} {BLOCKS_OFF}", f"kv_bytes=1{'0' * 400}: "),
    (f"kv_bytes=1TiB {BLOCKS_OFF}", f"kv_bytes=1TiB: {BYTES}"),
    (f"kv_bytes=-1 {BLOCKS_OFF}", f"kv_bytes=-1: {BYTES}"),
    (f"kv_bytes='' {BLOCKS_OFF}", f"kv_bytes=: {BYTES}"),
    (f"kv_bytes=nan {BLOCKS_OFF}", f"kv_bytes=nan: {BYTES}"),
    (f"kv_bytes=inf {BLOCKS_OFF}", f"kv_bytes=inf: {BYTES}"),
    (f"kv_bytes=true {BLOCKS_OFF}", f"kv_bytes=True: {BYTES}"),
    (f"kv_bytes=GiB {BLOCKS_OFF}", f"kv_bytes=GiB: {BYTES}"),
    # What does not go together.
    ("allocator.name=oracle sampling.ignore_eos=false", "allocator=oracle must know each output length beforehand, ex"),
    ("allocator.name=power_of_two sampling.ignore_eos=false", "allocator=power_of_two must know each output length "),
    (
        "preemption.victim=longest_remaining sampling.ignore_eos=false",
        "preemption.victim=longest_remaining must know each",
    ),
    (
        "scheduler.order=sjf sampling.ignore_eos=false",
        "scheduler.order=sjf with scheduler.predictor=oracle must know each",
    ),
    (
        "scheduler.order=lpm",
        "scheduler.order=lpm with prefix_cache=none: nothing is cached to go by, expected prefix_cache=",
    ),
    (
        "scheduler.admission=reserve_output allocator.name=reserve_max",
        "scheduler.admission=reserve_output with allocator=",
    ),
    ("scheduler.admission=estimated_peak allocator.name=oracle", "scheduler.admission=estimated_peak with allocator="),
    (
        "preemption.name=none",
        "preemption=none with scheduler.admission=on_demand: those that run could wait for each other's blocks for "
        "ever, expected scheduler.admission to be one of one_at_a_time, reserve_output",
    ),
    (
        "preemption.name=none scheduler.admission=estimated_peak",
        "preemption=none with scheduler.admission=estimated_peak",
    ),
    (
        "scheduler.preemptive=true",
        "scheduler.preemptive=true with scheduler.order=fcfs: in that order nobody yields, expected one of priority, "
        "srtf, mlfq",
    ),
    (
        "scheduler.preemptive=true scheduler.order=srtf allocator.name=reserve_max",
        "scheduler.preemptive=true with alloc",
    ),
    (
        "scheduler.preemptive=true scheduler.order=srtf preemption.name=none scheduler.admission=reserve_output",
        "scheduler.preemptive=true with preemption=none: expected one that preempts",
    ),
    (
        "scheduler.preemptive=true scheduler.order=srtf scheduler.batching=static",
        "scheduler.preemptive=true with scheduler.batching=static: a batch that nobody enters",
    ),
    ("model.source=path", "model.path=null: expected a folder or a hub id, as model.source=path says"),
    ("workload.arrival.rate=2", "workload.arrival.rate=2.0: expected null, as at_once has no rate"),
    ("workload.arrival.process=poisson", "workload.arrival.rate=null: expected a number from 1e-06 to 1e+09"),
    ("workload.arrival.burstiness=2", "workload.arrival.burstiness=2.0: expected 1, as only gamma has bursts"),
    ("workload.prompt.distribution=fixed", "workload.prompt.sigma=0.8: expected null, as fixed has no sigma"),
    # Texts that are empty: a variable of the shell that is not set.
    ("model.name=", "model.name=: expected a text that is not empty"),
    ("model.path=", "model.path=: expected a text that is not empty"),
    ("model.path=' '", "model.path= : expected a text that is not empty"),
    ("model.revision=", "model.revision=: expected a text that is not empty"),
    ("model.dtype=", "model.dtype=: expected one of float32, bfloat16, float16, float64"),
    ("model.source=", "model.source=: expected a text that is not empty"),
    ("scheduler.order=", "scheduler.order=: no such option, expected one of fcfs, priority"),
    ("kernel.name=", "kernel=: no such option, expected one of reference, torch, cpu, triton, cupy"),
    # Places that are not there.
    ("model.path=./nowhere", "model.path=./nowhere: no such folder"),
    ("replicas=0", "replicas=0: expected at least 1 and at most 1024"),
    ("replicas=2", "replicas=2 with router=none: expected one of round_robin, random"),
    ("tiers.load=never", "tiers.load=never: expected one of cheaper, always"),
    ("tiers.store=later", "tiers.store=later: expected one of beside, first, free"),
    ("tiers.host.gib=-1", "tiers.host.gib=-1.0: expected at least 0"),
    ("tiers.disk.bandwidth_gb_s=0", "tiers.disk.bandwidth_gb_s=0.0: expected more than 0, and finite"),
    (
        "tiers.host.eviction=gdsf",
        "tiers.host.eviction=gdsf: expected one of lru, fifo, lfu, mru, filo, random, sieve, a",
    ),
    ("tiers.host.gib=1", "tiers.host.gib=1.0 with executor=fingerprint: blocks move between tiers in simulation alone"),
    ("model.path=/nowhere/at/all", "model.path=/nowhere/at/all: no such folder"),
]

WITH_GROUPS = [
    (
        ("preemption=swap",),
        "preemption.swap_space=0",
        "preemption.swap_space=0: nothing could be swapped out, expected more (or preemption=recompute)",
    ),
    (
        ("preemption=swap",),
        "preemption.swap_space=lots",
        "preemption.swap_space=lots: expected a number of bytes, or a number with KiB, MiB, GiB, KB, MB or GB",
    ),
    (("preemption=swap",), "preemption.swap_space=", "preemption.swap_space=: expected a number of bytes, or a number"),
    (
        ("preemption=swap",),
        "preemption.swap_num_blocks=0",
        "preemption.swap_num_blocks=0: expected at least 1 and at most 2147483647",
    ),
    (
        ("preemption=swap", "preemption.swap_space=1GiB"),
        "preemption.swap_num_blocks=8",
        "preemption.swap_space=1GiB and preemption.swap_num_blocks=8: expected at most one of them",
    ),
    (
        ("preemption=swap", "allocator=reserve_max"),
        "preemption.swap_space=1GiB",
        "preemption=swap with allocator=reserve_max: what reserves all that a request can need never preempts one, "
        "expected allocator=paged",
    ),
    (("preemption=adaptive",), "preemption.cost=guess", "preemption.cost=guess: expected measured or model"),
    (("preemption=adaptive",), "preemption.token_s=-1", "preemption.token_s=-1.0: expected at least 0"),
    (("preemption=adaptive",), "preemption.pair_s=nan", "preemption.pair_s=nan: expected at least 0"),
    (
        ("preemption=adaptive",),
        "preemption.bytes_per_s=0",
        "preemption.bytes_per_s=0.0: expected more than 0, and finite",
    ),
    (
        ("preemption=adaptive",),
        "preemption.bytes_per_s=inf",
        "preemption.bytes_per_s=inf: expected more than 0, and finite",
    ),
    (("tracker=wandb",), "tracker.mode=always", "tracker.mode=always: expected offline or online"),
    (("tracker=wandb",), "tracker.timeout_s=0", "tracker.timeout_s=0.0: expected more than 0 and at most 86400"),
    (("tracker=wandb",), "tracker.timeout_s=nan", "tracker.timeout_s=nan: expected more than 0 and at most 86400"),
    (("tracker=wandb",), "tracker.timeout_s=inf", "tracker.timeout_s=inf: expected more than 0 and at most 86400"),
    (("tracker=wandb",), "tracker.tags=a", "tracker.tags: Invalid value assigned: AnyNode is not a ListConfig"),
    (("tracker=wandb",), "tracker.tags=[null]", "tracker.tags[0]: Invalid type assigned: NoneType is not a subclass"),
    (("tracker=wandb",), "tracker.tags=[a,'']", "tracker.tags[1]=: expected a text that is not empty"),
    (("tracker=wandb",), "tracker.tags=[[a]]", "tracker.tags[0]=['a']: expected a text that is not empty"),
    (("tracker=wandb",), "tracker.project=", "tracker.project=: expected a text that is not empty"),
    (("tracker=wandb",), "tracker.entity=", "tracker.entity=: expected a text that is not empty"),
    (("router=round_robin", "executor=torch"), "replicas=2", "router=round_robin with executor=torch: replicas on one"),
    (("executor=simulated",), "tiers.disk.gib=1", "tiers.disk.gib=1.0 with prefix_cache=none: nothing is evicted that"),
    (("router=least_loaded",), "router.by=time", "router.by=time: expected requests or tokens"),
    (("router=prefix_aware",), "router.cache_threshold=2", "router.cache_threshold=2.0: expected at least 0 and at mo"),
    (("router=prefix_aware",), "router.balance_ratio=0.5", "router.balance_ratio=0.5: expected at least 1"),
    (("prefix_cache=radix",), "prefix_cache.hash=md5", "prefix_cache.hash=md5: expected one of xxh3_128, sha256"),
    (
        ("prefix_cache=radix",),
        "prefix_cache.pin_blocks=-1",
        "prefix_cache.pin_blocks=-1: expected at least 0 and at most",
    ),
    (("prefix_cache=radix",), "prefix_cache.leaf_first=2", "prefix_cache.leaf_first=2: expected true or false"),
    (
        ("prefix_cache=hash_chain", "allocator=reserve_max"),
        "seed=1",
        "prefix_cache=hash_chain with allocator=reserve_max: a run of a request's own cannot be shared, expected "
        "allocator=paged",
    ),
    (
        ("prefix_cache=radix", "eviction=belady"),
        "seed=1",
        "eviction=belady must know what will be asked for, which only `pagedlab replay` does",
    ),
    (
        ("prefix_cache=none",),
        "prefix_cache.hash=md5",
        "prefix_cache.hash: no such setting here, only with prefix_cache=",
    ),
    (("executor=torch",), "executor.device=tpu", "executor.device=tpu: expected auto, cpu, cuda or cuda:N"),
    (("executor=torch",), "executor.device=cuda:", "executor.device=cuda:: expected auto, cpu, cuda or cuda:N"),
    (("executor=torch",), "executor.device=", "executor.device=: expected auto, cpu, cuda or cuda:N"),
    (("executor=torch",), "executor.threads=0", "executor.threads=0: expected at least 1 and at most 1024"),
    (("executor=torch",), "executor.threads=99999", "executor.threads=99999: expected at least 1 and at most 1024"),
    (("executor=torch",), "executor.step_s=1", "executor.step_s: no such setting here, only with executor=fingerprint"),
]


@pytest.mark.parametrize(
    ("workload", "given"),
    [
        ("synthetic", "workload.prompt.mean=nan"),
        ("sharegpt", "workload.max_tokens=0"),
        ("dialogues", "workload.think.mean_s=-1"),
        ("mooncake", "workload.limit=0"),
        *((trace, "workload.repeats=0") for trace in ("azure", "burstgpt", "token_counts", "request_lines")),
    ],
)
def test_a_bad_value_of_a_workload_is_refused_before_any_file_of_it_is_read(workload, given):
    base = ("executor=fingerprint", "model=tiny_llama", f"workload={workload}", "++workload.path=nowhere.json")
    base = base[:3] if workload in ("synthetic", "dialogues") else base
    load_settings(composed(base=base))
    with pytest.raises(ConfigError, match=f"^{given}.*: expected"):
        load_settings(composed(given, base=base))


@pytest.mark.parametrize(("given", "line"), BAD, ids=[given[:60] for given, _ in BAD])
def test_a_bad_value_is_one_line_that_names_it(given, line):
    values = given.split(" ") if "' '" not in given else [given]
    said = said_of(lambda: overridden((), *values))
    assert said is not None, "accepted"
    assert said.startswith(line)
    assert said.isprintable()


@pytest.mark.parametrize(
    ("groups", "given", "line"), WITH_GROUPS, ids=[f"{groups[0]} {given}" for groups, given, _ in WITH_GROUPS]
)
def test_a_bad_value_of_an_option_is_one_line_that_names_it(groups, given, line):
    said = said_of(lambda: overridden(groups, given))
    assert said is not None, "accepted"
    assert said.startswith(line)
    assert said.isprintable()


SHAREGPT = ("executor=fingerprint", "model=tiny_llama", "kv_num_blocks=64")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("workload.path=", "workload.path=: expected a text that is not empty"),
        ("workload.path=nowhere.json", "nowhere.json: No such file or directory"),
        ("workload.multi_turn=5", "workload.multi_turn=5: expected true or false"),
        ("workload.max_tokens=null", "workload.max_tokens: Incompatible value 'None' for field of type 'int'"),
        ("workload.num_requests=0", "workload.num_requests=0: expected a whole number from 1 to 16777216, or null"),
        (
            "workload.min_prompt_tokens=0",
            "workload.min_prompt_tokens=0: expected a whole number from 1 to 16777216, or",
        ),
        ("workload.min_output_tokens=300", "workload.min_output_tokens=300: expected at most workload.max_tokens=256"),
        ("workload.prompt.mean=3", "workload.prompt: no such setting here, only with workload=synthetic"),
    ],
)
def test_a_bad_value_of_recorded_conversations_is_one_line_that_names_it(given, line):
    said = said_of(lambda: overridden((), given, base=SHAREGPT))
    assert said is not None, "accepted"
    assert said.startswith(line)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            "allocator=nope",
            "Could not find 'allocator/nope' Available options in 'allocator': oracle oracle_buddy paged power_of_two",
        ),
        ("preemption=swop", "Could not find 'preemption/swop' Available options in 'preemption': adaptive none"),
        ("allocator=null", "Config group override must be a string or a list. Got NoneType"),
        ("block_size=16,32", "Ambiguous value for argument 'block_size=16,32'"),
        ("block_size", "Error parsing override 'block_size'"),
        ("block_size=[1", "no viable alternative at input '[1'"),
        ("~workload", "workload: no such setting here"),
        ("~executor", "executor=None: no such option, expected one of torch, fingerprint"),
        ("~kernel", "kernel: no value given"),
    ],
)
def test_what_hydra_itself_refuses_is_one_line_too(given, line):
    said = said_of(lambda: composed(given))
    assert said is not None, "accepted"
    assert line in said
    assert said.isprintable()


def test_a_pool_without_a_model_must_fit_the_memory_as_well(monkeypatch):
    """A fingerprint a slot and an entry a block: refused before any of it is made, however large the machine."""
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=2**20))
    said = said_of(lambda: overridden((), "kv_num_blocks=2147483647"))
    assert said == ("kv_num_blocks=2147483647: 2147483647 blocks take 824633720448 bytes, the device has 1048576 free")
    assert said_of(lambda: overridden((), "kv_num_blocks=2730")) is None  # x 384 bytes
    assert said_of(lambda: overridden((), "kv_num_blocks=2731")).startswith("kv_num_blocks=2731: 2731 blocks take ")


@pytest.mark.parametrize("given", ["block_sise=1", "block_size=abc", "kv_bytes=1GiB", "executor.device=cpu", "seed=-1"])
def test_the_short_way_of_these_tests_says_what_composing_says(given):
    assert said_of(lambda: overridden((), given)) == said_of(lambda: composed(given))


TEXTS = ["block_size", "kv_bytes", "scheduler.order", "executor.name", "model.dtype", "model.source", "model.path"]
TEXTS += ["progress", "workload.prompt.distribution"]
BREAKS = ["a\r\nb", "a\x0bb", "a\u2028b", "\x1b[31mred"]


@pytest.mark.parametrize(
    ("path", "text"), [(path, "a\nb") for path in TEXTS] + [("model.path", text) for text in BREAKS]
)
def test_a_line_break_in_a_value_does_not_make_two_lines(path, text):
    def config():
        plain = overridden((), BLOCKS_OFF)
        OmegaConf.update(plain, path, text)
        return plain

    said = said_of(config)
    assert said.isprintable()
    assert path.removesuffix(".name") in said


def test_an_error_of_the_user_is_always_one_line():
    assert str(PagedlabError("kv: a\nb\tc\x1b[0m é 日本")) == r"kv: a\nb\tc\x1b[0m é 日本"
    assert str(ConfigError("plain, with 'quotes' and \\n")) == "plain, with 'quotes' and \\n"


# ---- values that are taken ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        "block_size=1",
        "block_size=256",
        "seed=9223372036854775807",
        "scheduler.watermark=0",
        "scheduler.watermark=1",
        "scheduler.max_num_seqs=1",
        "scheduler.max_num_batched_tokens=1",
        "sampling.temperature=0",
        "sampling.temperature=1 sampling.n=2 sampling.best_of=4",
        "sampling.beam_width=4 sampling.length_penalty=-1 sampling.early_stopping=true",
        "sampling.beam_width=4 sampling.early_stopping=NEVER",
        "sampling.temperature=1.5 sampling.top_k=50 sampling.top_p=0.9 sampling.ignore_eos=false",
        "max_model_len=512",
        "max_model_len=1",
        "kv_num_blocks=1",
        f"kv_fraction=0.001 {BLOCKS_OFF}",
        f"kv_bytes=8192 {BLOCKS_OFF}",
        f"kv_bytes=1e6 {BLOCKS_OFF}",
        f"kv_bytes=0.5MiB {BLOCKS_OFF}",
        "executor.step_s=0",
        "executor.token_s=0",
        "executor.eos_token_id=49999",
        "progress=false",
        "progress=1",
        "allocator.name=oracle",
        "preemption.name=none scheduler.admission=reserve_output",
        "preemption.name=none allocator.name=reserve_max",
        "scheduler.order=srtf scheduler.preemptive=true scheduler.predictor=noisy scheduler.predictor_sigma=0",
        "slo.ttft_s=0 slo.tpot_s=0",
        "workload.priorities=[-3,0,7] workload.clients=256",
        "workload.arrival.process=gamma workload.arrival.rate=5 workload.arrival.burstiness=0.5",
        "+model.config.rope_theta=500000",
    ],
)
def test_values_at_the_edge_are_taken(given):
    assert said_of(lambda: overridden((), *given.split(" "))) is None


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("1073741824", 2**30),
        ("1b", 1),
        ("512MiB", 2**29),
        ("512 mib", 2**29),
        ("  2 GiB ", 2**31),
        ("1KiB", 1024),
        ("1kb", 1000),
        ("1.5GB", 1_500_000_000),
        ("0.5 KiB", 512),
        ("10MB", 10_000_000),
        ("9007199254740993", 9007199254740993),  # beyond what a float can tell apart
        ("1000000000.0", 10**9),
    ],
)
def test_bytes_can_be_said_in_these_ways(text, count):
    assert parse_bytes(text) == count


NO_BYTES = ["", " ", "-1", "+1", "1e9", "1,5GB", "1.GiB", ".5GiB", "GiB", "1 GiB GiB", "1TiB", "1 G", "nan", "inf"]
NO_BYTES += ["0x10", "1_000", "²GiB", "\u0661MiB", "1 Gi B"]


@pytest.mark.parametrize("text", NO_BYTES)
def test_bytes_cannot_be_said_otherwise(text):
    with pytest.raises(ConfigError, match=r"^kv_bytes=.*: expected a number of bytes"):
        parse_bytes(text)


def test_settings_are_typed_whatever_the_command_line_made_of_them():
    """Hydra parses values by their looks: a path that looks like a number stays a text, an integer becomes a float."""
    settings = settings_of("kv_bytes=1000000", BLOCKS_OFF, "scheduler.watermark=1", "model.revision=12")
    assert settings.kv_bytes == "1000000"
    assert isinstance(settings.scheduler.watermark, float)
    assert settings.model.revision == "12"
