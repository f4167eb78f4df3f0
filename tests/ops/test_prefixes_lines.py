"""What is made of measured values, and the prompts that are measured with."""

import io

import pytest
from rich.console import Console

from ops.load.progress import Progress
from ops.prefixes.in_process import equal_share
from ops.prefixes.lines import lines_of
from ops.prefixes.plan import SCALES, Arm, NotMeasured, Plan, Span, in_turn
from ops.prefixes.prompts import Words, ids, unlike_ids
from ops.prefixes.table import table_of
from ops.prefixes.works import WORKS

VALUES = {
    "ttft": {
        "gateway.cold_s": [1.0, 2.0, 1.0],
        "gateway.warm_s": [0.1, 0.2, 0.3],
        "mlx_lm.server.cold_s": [1.0, 1.0, 1.0],
        "mlx_lm.server.warm_s": [0.2, 0.2, 0.2],
    },
    "sharing": {
        "shared.tokens_per_s": [130.0],
        "copies.tokens_per_s": [100.0],
        "shared.kv_bytes": [21e6],
        "copies.kv_bytes": [100e6],
        "shared.of_held": [1.05],
        "copies.of_held": [5.0],
        "shared.joined_s": [1.0],
        "copies.joined_s": [2.0],
        "shared.first_s": [4.0],
    },
    "equal": {"equal_share": [0.75]},
    "conversation": {
        "gateway.prompt_tokens": [1000.0],
        "gateway.computed_tokens": [110.0],
        "gateway.new_tokens": [100.0],
        "gateway.later_computed_tokens": [90.0],
        "gateway.later_new_tokens": [80.0],
        "mlx_lm.server.computed_tokens": [150.0],
        "mlx_lm.server.new_tokens": [100.0],
    },
    "resume": {
        "disk.computed_tokens": [65.0, 66.0],
        "no disk.computed_tokens": [4000.0, 4000.0],
        "disk.allowed_tokens": [65.0, 65.0],
        "disk.next_token_s": [3.0, 3.0],
        "no disk.next_token_s": [9.0, 9.0],
        "disk.from_begin_s": [1.0, 1.0],
        "no disk.from_begin_s": [7.0, 7.0],
    },
    "unrelated": {"store.tokens_per_s": [98.0], "no store.tokens_per_s": [100.0]},
}


def verdicts(work: str) -> list[str]:
    return [line.verdict for line in lines_of(work, VALUES[work])]


def test_each_aim_of_a_work_is_judged_on_its_own():
    assert verdicts("ttft") == ["met", "", "met", "", ""]
    assert verdicts("sharing") == ["met", "missed", "met", "", ""]
    assert verdicts("conversation") == ["met", "missed", "", ""]
    assert verdicts("resume") == ["missed", "", "", ""]
    assert verdicts("unrelated") == ["met"]


def test_a_ratio_is_of_what_ran_side_by_side_and_has_its_range():
    warm, _server, both, *_ = lines_of("ttft", VALUES["ttft"])
    assert warm.ratio is not None
    assert (warm.ratio.low, warm.ratio.median, warm.ratio.high) == (0.1, 0.1, 0.3)
    assert both.ratio is not None
    assert both.ratio.median == pytest.approx(0.5)
    assert (both.ours, both.theirs) == pytest.approx((0.1, 0.2))


def test_bytes_of_rows_that_share_are_judged_alone_and_those_of_copies_stand_beside():
    held = lines_of("sharing", VALUES["sharing"], Arm(16, 1000))[2]
    assert (held.work, held.ours, held.theirs) == ("sharing 16 x 1000", 1.05, 5.0)
    assert held.ratio is not None
    assert held.ratio.median == 1.05


def test_what_is_compared_with_nothing_has_no_ratio():
    values = {**VALUES["conversation"], "gateway.later_new_tokens": [0.0]}
    assert lines_of("conversation", values)[1].ratio is None


def test_the_table_has_every_line_and_says_of_each_work_how_it_was_measured():
    lines = [line for work in (*WORKS, "equal") for line in lines_of(work, VALUES[work])]
    screen = Console(width=140, file=io.StringIO())
    screen.print(table_of(lines, WORKS, SCALES["cpu"], 3))
    text = screen.file.getvalue()
    assert all(line.measured in text for line in lines)
    assert all(f"{work}:" in text for work in WORKS)
    assert "Medians of 3 runs" in text
    screen.print(table_of(lines, ["ttft"], SCALES["cpu"], 3))
    assert screen.file.getvalue().count("resume:") == 1


# --- prompts and turns ------------------------------------------------------------------------------------


def test_prompts_that_have_nothing_in_common_differ_from_the_first_token_on():
    prompts = unlike_ids(300, 20, 250, "seed")
    assert len({prompt[0] for prompt in prompts}) == 250
    assert {len(prompt) for prompt in prompts} == {20}
    assert prompts == unlike_ids(300, 20, 250, "seed")
    assert ids(300, 20, "seed") != ids(300, 20, "other")


def test_texts_are_of_whole_plain_words_and_the_same_in_every_run():
    plain = [f"\u0120word{letter}{other}" for letter in "abcdefghijk" for other in "abcdefghijk"]
    words = Words([*plain, "\u2581also", "\u0120Not", "\u0120nor7this", "\u0120tiny"[:4], "norwithoutspace"])
    text = words.text(2000, 1)
    assert set(text.split()) == {"also", *(word[1:] for word in plain)}
    assert len(text.split()) == 2000
    assert (text == words.text(2000, 1), text == words.text(2000, 2)) == (True, False)
    lengths = {len(words.span(Span(3, 5), seed).split()) for seed in range(50)}
    assert lengths == {3, 4, 5}


def test_a_vocabulary_without_words_is_refused():
    with pytest.raises(NotMeasured, match="has 1 words"):
        Words(["\u0120water", "a"])


def test_sides_take_turns_in_alternating_order_and_a_warm_up_is_not_counted(tmp_path):
    quiet = Console(file=io.StringIO())
    ran: list[tuple[str, int]] = []

    def measure(name, number):
        ran.append((name, number))
        return {"value": float(number)}

    plan = Plan(None, tmp_path, SCALES["small"], 2, Progress(quiet))
    assert in_turn("work", ("a", "b"), measure, plan) == {"a.value": [1, 2], "b.value": [1, 2]}
    assert ran == [("b", 0), ("a", 0), ("a", 1), ("b", 1), ("b", 2), ("a", 2)]
    ran.clear()
    in_turn("work", ("a", "b"), measure, plan, warms_up=False)
    assert ran == [("a", 1), ("b", 1), ("b", 2), ("a", 2)]


def test_tokens_are_the_same_up_to_the_first_that_differs():
    some = {"a": [1, 2, 3, 4], "b": [5, 6]}
    assert equal_share(some, some) == 1
    assert equal_share(some, {"a": [1, 9, 3, 4], "b": [5, 6]}) == 3 / 6
