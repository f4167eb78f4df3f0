"""Sizes as operators write them."""

import pytest

from ops.plan import sizes
from shared.errors import SettingsError
from shared.limits import GIB, KIB, MIB


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64GB", 64 * GIB),
        ("64GiB", 64 * GIB),
        ("64 GB", 64 * GIB),
        ("1.5TB", 1536 * GIB),
        ("512MB", 512 * MIB),
    ],
)
def test_memory_is_read_as_it_is_sold(text: str, size: int) -> None:
    assert sizes.memory_bytes(text) == size


@pytest.mark.parametrize("text", ["64", "GB", "64gb", "-64GB", "64GB!", "1e3GB", "", "1MB", "99TB", "6 4GB"])
def test_what_is_no_memory_is_refused_in_words(text: str) -> None:
    with pytest.raises(SettingsError, match="--memory"):
        sizes.memory_bytes(text)


@pytest.mark.parametrize(
    ("text", "tokens"), [("32k", 32 * KIB), ("32K", 32 * KIB), ("32768", 32_768), ("1m", 1 << 20), ("16", 16)]
)
def test_a_context_is_read_in_tokens(text: str, tokens: int) -> None:
    assert sizes.context_tokens(text) == tokens


@pytest.mark.parametrize("text", ["32kb", "k", "-1", "0", "15", "2m", "1.5k", "", "\uff13k"])
def test_what_is_no_context_is_refused_in_words(text: str) -> None:
    with pytest.raises(SettingsError, match="--context"):
        sizes.context_tokens(text)


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [
        (0, "0 bytes"),
        (128 * KIB, "128 KiB"),
        (12 * MIB + MIB // 2, "12.5 MiB"),
        (512 * MIB, "512 MiB"),
        (4 * GIB, "4.0 GiB"),
        (2048 * GIB, "2,048 GiB"),
    ],
)
def test_bytes_are_written_with_about_three_digits(nbytes: int, words: str) -> None:
    assert sizes.in_words(nbytes) == words


def test_tokens_are_written_in_k_where_they_are_whole() -> None:
    assert [sizes.tokens_in_words(each) for each in (131_072, 1000, 32_768)] == ["128k", "1000", "32k"]
