"""Every combination of the scheduler's policies that a simulation takes, for tests that compare two ways to run it."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from pagedlab.allocator.base import ALLOCATORS
from pagedlab.core.request import Request, SamplingParams
from pagedlab.preemption.base import PREEMPTIONS
from pagedlab.preemption.victim.base import VICTIMS
from pagedlab.prefix_cache.base import PREFIX_CACHES
from pagedlab.scheduler.admission.base import ADMISSIONS
from pagedlab.scheduler.batching.base import BATCHINGS
from pagedlab.scheduler.order.base import ORDERS
from pagedlab.scheduler.predictor.base import PREDICTORS


@st.composite
def policies(draw, evictions=("lru", "arc"), preemptions=tuple(PREEMPTIONS)):
    """As `make_scheduler` takes them. Those by which the least is looked at come more often."""
    allocator = draw(st.sampled_from(["paged", "paged", *ALLOCATORS]))
    order = draw(st.sampled_from(["fcfs", "fcfs", *ORDERS]))
    paged, caching = ALLOCATORS[allocator].on_demand, ORDERS[order].needs_prefix_cache
    if caching:
        allocator, paged = "paged", True
    admissions = [name for name in ADMISSIONS if paged or not ADMISSIONS[name].needs_paging]
    admission = draw(st.sampled_from(["on_demand", "on_demand", *admissions]))
    batching = draw(st.sampled_from(list(BATCHINGS)))
    safe = not paged or not ADMISSIONS[admission].overcommits
    allowed = [name for name in preemptions if PREEMPTIONS[name].preempts or safe]
    preemption = draw(st.sampled_from([name for name in allowed if paged or not PREEMPTIONS[name].needs_host]))
    able = ORDERS[order].preempts and paged and PREEMPTIONS[preemption].preempts and batching != "static"
    cached = paged and (caching or draw(st.sampled_from([False, False, True])))
    return {
        "allocator": allocator,
        "batching": batching,
        "tokens": draw(st.sampled_from([3, 8, 32, 512])),
        "order": order,
        "preemptive": able and draw(st.booleans()),
        "predictor": draw(st.sampled_from(list(PREDICTORS))),
        "lpm_max_waiting": draw(st.sampled_from([2, 128])),
        "mlfq": {"levels": 3, "quantum": 4, "ageing_s": draw(st.sampled_from([0.05, 9.0]))},
        "admission": admission,
        "estimated_peak": {"initial": 0.6, "minimum": 0.1, "decay_steps": 5, "retract_steps": 2},
        "watermark": draw(st.sampled_from([0.0, 0.2])),
        "victim": draw(st.sampled_from(list(VICTIMS))),
        "preemption": preemption,
        **({"prefix_cache": draw(st.sampled_from(list(PREFIX_CACHES)))} if cached else {}),
        **({"eviction": draw(st.sampled_from(evictions))} if cached else {}),
    }


def requests_of(rows, caching):
    """rows: (prompt tokens, most output tokens, true ones, seconds since the one before, what SamplingParams take).
    caching: whether prompts begin alike."""
    arrival, requests = 0.0, []
    for i, (prompt, most, true, gap, *outputs) in enumerate(rows):
        arrival += gap
        ids = np.arange(prompt, dtype=np.int32) + (prompt % 2 if caching else 0)
        sampling = SamplingParams(seed=i, **dict(outputs))
        who = {"client": "ab"[i % 3 == 0], "priority": 7 * i % 3}
        requests.append(Request(i, ids, most, true, arrival, sampling, **who))
    return requests
