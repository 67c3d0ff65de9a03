"""Every program of submissions, aborts and steps keeps every invariant, checked after each of its actions.

PAGEDLAB_FUZZ=5000 runs that many programs, freshly drawn; without it a fixed few are run, the same in every run.
"""

import os
import sys

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.engine.machine import Machine, World, a_world, an_ask, an_ask_that_never_fits


def drawn(make, *args):
    """Hypothesis makes the choices."""

    @st.composite
    def strategy(draw):
        return make(*args, lambda options: draw(st.sampled_from(options)))

    return strategy()


class Core(RuleBasedStateMachine):
    @initialize(world=drawn(a_world))
    def start(self, world: World):
        self.machine = Machine(world)

    @rule(data=st.data())
    def submit(self, data):
        self.machine.submit(data.draw(drawn(an_ask, self.machine.world)))

    @rule(data=st.data())
    def submit_more_at_once(self, data):
        for _ in range(3):
            self.machine.submit(data.draw(drawn(an_ask, self.machine.world)))

    @rule(data=st.data())
    def submit_what_never_fits(self, data):
        self.machine.submit(data.draw(drawn(an_ask_that_never_fits, self.machine.world)))

    @rule(index=st.integers(0, 30), live=st.booleans())
    def abort(self, index, live):
        self.machine.abort(index, live)

    @rule()
    def abort_the_refused(self):
        self.machine.abort_refused()

    @rule(data=st.data())
    def ask_the_allocator_past_the_scheduler(self, data):
        self.machine.probe(data.draw(drawn(an_ask, self.machine.world)))

    @rule()
    def step(self):
        self.machine.step()

    @rule(steps=st.integers(2, 8))
    def steps(self, steps):
        for _ in range(steps):
            self.machine.step()

    @rule()
    def drain(self):
        self.machine.drain()

    @rule()
    def audit(self):
        self.machine.check()

    def teardown(self):
        # Not after a failure: what fails while finishing would hide what failed first.
        if sys.exc_info()[0] is None:
            self.machine.finish()


FUZZ = int(os.environ.get("PAGEDLAB_FUZZ") or 0)

TestCore = Core.TestCase
TestCore.settings = settings(
    max_examples=FUZZ or 300,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    report_multiple_bugs=False,
    derandomize=not FUZZ,
)
