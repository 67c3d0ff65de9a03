"""How evenly clients were served while all of them wanted more (Sheng et al., OSDI 2024, section 4)."""

from __future__ import annotations

import numpy as np

from pagedlab.recorder.recorder import Recorder


def service_gap(recorder: Recorder, input_weight: float, output_weight: float) -> float | None:
    """The most by which the service of two clients differs over any span of time in which both had requests waiting
    all the time. None where there is no second client.

    Service is input_weight for each token of a prompt, when its request is first admitted, and output_weight for each
    token generated. With D the difference of two clients' service so far, the answer for them is the largest max D -
    min D of a span, each taken at the ends of steps.
    """
    clients = sorted({seq.request.client for seq in recorder.sequences})
    if len(clients) < 2:
        return None
    number = {client: i for i, client in enumerate(clients)}
    # of each pair, in the span that it is in: the difference now, in tokens of each kind, and the least and the most
    fed, generated, least, most = (np.zeros((len(clients), len(clients))) for _ in range(4))
    gap = 0.0
    for steps, served, backlogged in recorder.service:
        waits = np.zeros(len(clients), dtype=bool)
        waits[[number[client] for client in backlogged]] = True
        both = waits[:, None] & waits[None, :]
        service = np.zeros((2, len(clients)))
        for client, of in served.items():
            service[:, number[client]] = of
        added = steps * (service[:, :, None] - service[:, None, :])
        # Where steps are alike, none of them is beyond the last.
        fed, generated = np.where(both, (fed + added[0], generated + added[1]), 0.0)
        now = input_weight * fed + output_weight * generated
        least, most = (
            np.where(both, bound(kept, now), 0.0) for bound, kept in ((np.minimum, least), (np.maximum, most))
        )
        gap = max(gap, float((most - least).max()))
    return gap
