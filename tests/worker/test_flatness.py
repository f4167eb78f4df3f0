"""A row that was found flat has more sorted for it, for a while, and then less again."""

from worker.engine.flatness import TOKENS, Flatness
from worker.engine.row_kinds import FLATTEST


def test_a_row_is_as_flat_as_often_as_it_missed_and_no_flatter_than_all_sorted() -> None:
    flatness = Flatness()
    levels = [flatness.level("a", 0)]
    for token in range(FLATTEST + 2):
        flatness.missed("a", token)
        levels.append(flatness.level("a", token))
    assert levels == [0, *range(1, FLATTEST + 1), FLATTEST, FLATTEST]


def test_a_level_falls_by_one_after_so_many_tokens_without_a_miss() -> None:
    flatness = Flatness()
    for token in (1, 2):
        flatness.missed("a", token)
    assert flatness.level("a", 2 + TOKENS) == 2
    assert flatness.level("a", 3 + TOKENS) == 1
    assert flatness.level("a", 3 + 2 * TOKENS) == 1
    assert flatness.level("a", 4 + 2 * TOKENS) == 0


def test_rows_do_not_flatten_each_other_and_are_forgotten() -> None:
    flatness = Flatness()
    flatness.missed("a", 1)
    assert (flatness.level("a", 2), flatness.level("b", 2)) == (1, 0)
    flatness.keep_only(["b"])
    assert flatness.level("a", 2) == 0
