"""What a person sees of a run: one plain sentence, and two tables that fit a terminal."""

import io

import pytest
from rich.console import Console

from pagedlab.analysis.display import Display, header, latency_table, memory_table, verdict
from pagedlab.recorder.protocol import protocol
from tests.lab import request
from tests.recorder.served import served


def summary_of(requests, num_blocks, **choices):
    _, summary = served(requests, num_blocks, **choices)
    return summary | {"allocator": choices.get("allocator", "paged"), "seed": 0, **protocol(requests)}


def roomy():
    return summary_of([request(6, 3, id=i) for i in range(3)], 8)


def waiting():
    """Two R(6, 3) reserve 2 of 3 blocks each: the second waits for 3 of the 6 seconds."""
    return summary_of([request(6, 3, id=0), request(6, 3, id=1)], 3, allocator="reserve_output")


def thrashing():
    """E43: one preemption, 16 tokens fed again."""
    return summary_of([request(14, 18, id=0), request(14, 18, id=1)], 8)


def interrupted():
    return summary_of([request(4, 2, id=0), request(4, 9, id=1)], 8, stop_after=3)


def all_refused():
    return summary_of([request(20, 5, id=i) for i in range(3)], 2, max_model_len=100)


# ---- the sentence -------------------------------------------------------------------------------------------------


def test_a_run_that_never_waited():
    """Three R(6, 3): 6, 7, 8 tokens each in 2 blocks, a tail of 2, 1, 0."""
    assert verdict(roomy()) == (
        "With allocator paged, 12.5 % of the KV memory that requests held stored no token, "
        "and 3.0 requests ran at a time, giving 3 output tokens/s; no request ever waited for memory."
    )


def test_a_run_in_which_requests_waited():
    assert verdict(waiting()) == (
        "With allocator reserve_output, 12.5 % of the KV memory that requests held stored no token, "
        "and 1.0 requests ran at a time, giving 1 output tokens/s; for 50 % of the time requests waited for memory."
    )


def test_a_run_with_one_preemption_and_with_more():
    summary = thrashing()
    assert verdict(summary) == (
        "With allocator paged, 6.2 % of the KV memory that requests held stored no token, "
        "and 1.1 requests ran at a time, giving 1 output tokens/s; "
        "the pool ran out 1 time, which cost 16 tokens computed twice."
    )
    more = summary | {"preemptions": 12, "recomputed_tokens": 345}
    assert verdict(more).endswith("; the pool ran out 12 times, which cost 345 tokens computed twice.")


def test_a_run_that_was_interrupted():
    assert verdict(interrupted()) == "The run was interrupted: the numbers cover 1 of 2 requests begun."


def test_a_run_of_which_nothing_was_served():
    assert verdict(all_refused()) == (
        "No request was served: all 3 were refused (see the column refusal of requests.parquet)."
    )


def sharing():
    """R(10, 3) with four samples: 12 of 27 blocks saved over time."""
    return summary_of([request(10, 3, n=4, temperature=1.0)], 16)


def test_a_run_that_shared_blocks():
    assert verdict(sharing()) == (
        "With allocator paged, 10.0 % of the KV memory that requests held stored no token, and 3.0 requests ran at a "
        "time, giving 4 output tokens/s; sharing saved 44.4 % of the blocks; no request ever waited for memory."
    )


RUNS = [roomy, waiting, thrashing, sharing, interrupted, all_refused]


@pytest.mark.parametrize("make", RUNS)
def test_the_sentence_is_one_line_with_one_end(make):
    said = verdict(make())
    assert said.isprintable()
    assert said.endswith(".")
    assert not said.endswith("..")


# ---- the tables ---------------------------------------------------------------------------------------------------


def rendered(table, width):
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


@pytest.mark.parametrize("make", RUNS)
def test_tables_fit_eighty_columns_and_cut_nothing_off(make):
    summary = make()
    for table in (memory_table(summary), latency_table(summary)):
        text = rendered(table, 80)
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text


def test_tables_of_a_long_run_fit_eighty_columns_too():
    huge = thrashing() | {"completed": 10**7, "refused": 10**7, "num_requests": 2 * 10**7, "steps": 10**9}
    huge |= {"duration_s": 1e7, "output_tokens_per_s": 123456.7, "recomputed_tokens": 10**12}
    huge["e2e_s"] = dict.fromkeys(huge["e2e_s"], 1234567.8901)
    for table in (memory_table(huge), latency_table(huge)):
        assert "…" not in rendered(table, 80)


def test_the_memory_table_shows_the_shares_and_the_throughput():
    lines = rendered(memory_table(thrashing()), 120).splitlines()
    shown = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    assert shown == [
        ["a token", "76.70 %", "", "requests", "2 completed, 0 refused of 2"],
        ["reserved, used later", "0.00 %", "", "duration", "33.00 s, 33 steps"],
        ["reserved, never used (internal)", "0.00 %", "", "output tokens/s", "1.1"],
        ["tail of a last block", "5.11 %", "", "total tokens/s", "1.9"],
        ["cached, idle", "0.00 %", "", "requests/s", "0.061"],
        ["free, unusable (external)", "9.09 %", "", "batch, mean (peak)", "1.1 (2)"],
        ["free", "9.09 %", "", "preemptions", "1"],
        ["waste: no token, of allocated", "6.25 %", "", "recomputed tokens", "16"],
    ]


def test_what_sharing_saved_has_a_row_where_something_was_shared():
    lines = rendered(memory_table(sharing()), 120).splitlines()
    shown = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    assert shown[-1] == ["blocks saved by sharing", "44.44 %", "", "blocks copied", "3 in 0.000 s"]
    assert "saved by sharing" not in rendered(memory_table(roomy()), 120)


def test_the_latency_table_shows_a_dash_where_there_is_no_number():
    text = rendered(latency_table(summary_of([request(4, 1)], 4)), 80)
    cells = {line.split("│")[1].strip(): line.split("│")[2:6] for line in text.splitlines() if line.startswith("│")}
    assert [cell.strip() for cell in cells["TTFT, time to first token"]] == ["1.0000"] * 4
    assert [cell.strip() for cell in cells["TPOT, time per output token"]] == ["-"] * 4
    assert [cell.strip() for cell in cells["ITL, between tokens"]] == ["-"] * 4


# ---- the header ---------------------------------------------------------------------------------------------------


def test_the_header_says_how_the_numbers_came_about():
    summary = roomy()
    assert header(summary | {"prompt_overlap_fraction": 0.25}) == (
        "seed 0; cold cache at the start, no warm-up requests; 25.0 % of the prompt tokens repeat the beginning of an "
        "earlier prompt"
    )
    assert header(summary | {"seed": None, "seeds": [3, 5], "prompt_overlap_fraction": None}) == (
        "means over seeds 3, 5; cold cache at the start, no warm-up requests; too many tokens to compare prompts"
    )


# ---- where it goes ------------------------------------------------------------------------------------------------


def test_results_go_to_stdout_and_progress_only_to_a_terminal(capsys):
    show = Display(progress=True)
    show.doing("loading a model called [/nothing]")
    show.result(thrashing())
    show.done()
    out, err = capsys.readouterr()
    assert err == ""
    assert "waste: no token, of allocated" in out
    assert "TTFT, time to first token" in out
    assert out.splitlines()[-1] == verdict(thrashing())


def test_what_takes_a_moment_is_said_as_it_is_on_a_terminal(monkeypatch):
    """A name in square brackets is no markup."""
    show = Display(progress=True)
    show._err, show._progress = Console(file=io.StringIO(), width=80), True
    show.doing("loading models/[bold]x[/red]")
    assert show._err.file.getvalue() == "loading models/[bold]x[/red] ...\n"
