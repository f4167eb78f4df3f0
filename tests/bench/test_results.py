"""What is made of a result: a comparison that knows noise, a page that needs nobody else, a file."""

import functools
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from ops.bench import result as results
from ops.bench.aftermath import scenario_figures
from ops.bench.compare import Change, compare, differing, share
from ops.bench.doing import Measured
from ops.bench.figures import Arm
from ops.bench.intervals import Interval
from ops.bench.ordering import local_url, served_name, settings_of
from ops.bench.page import _embedded, page
from ops.bench.peer import model_folder
from ops.bench.plan import Axes, Point, numbers, works
from ops.bench.prompts import CALIBRATION_WORDS, Fit, Prompts
from ops.bench.result import run_metadata, whole_result
from ops.bench.target import Address, Target, footprint_bytes, resident_bytes
from ops.cli import app
from shared.config import Settings
from shared.errors import SettingsError
from tests.bench.samples import ARM, one_pass, plan, refused, steady

SCRIPT = "</script><script>alert(1)</script>"


@functools.cache
def a_result(*, first_s=0.5, gap_s=0.1, jitter_s=0.02, arms=(ARM,), model="small", failed=(), **changes):
    passes = [
        one_pass([*steady(6, first_s + drift, gap_s, 5, jitter_s), *failed], ended=(2 + drift) * gap_s * 10)
        for drift in (0.0, 0.01, 0.02)
    ]
    target = Target("server", Address.read("http://127.0.0.1:8000"), model, "fb-secret")
    metadata = run_metadata(plan(), Prompts(Fit(0, 1), 1, "salt"), [target], "2026-01-01", {})
    return {**whole_result(metadata, Measured(dict.fromkeys(arms, passes)), 1), **changes}


def write(tmp_path, **sides):
    files = []
    for name, result in sides.items():
        file = tmp_path / f"{name}.json"
        results.write(file, results.as_json(result))
        files.append(str(file))
    return files


def compared(*words):
    return CliRunner().invoke(app, ["bench", "compare", *words])


# --- comparing --------------------------------------------------------------------------------------------


def verdicts(a, b):
    return {(change.metric, change.percent): change.verdict for change in compare(a, b).changes}


def test_a_result_beside_itself_has_no_difference_that_the_noise_allows_to_see():
    assert set(verdicts(a_result(), a_result()).values()) == {"no difference"}


def test_twice_the_time_is_worse_and_half_of_it_better_each_in_its_own_direction():
    slow, quick = a_result(first_s=1.0, gap_s=0.2), a_result()
    found = verdicts(quick, slow)
    assert {found["ttft_ms", 50], found["itl_ms", 95], found["output_tokens_per_s", 50]} == {"worse"}
    assert set(verdicts(slow, quick).values()) == {"better"}


def test_a_ratio_is_b_over_a():
    (change,) = [
        each
        for each in compare(a_result(), a_result(gap_s=0.2)).changes
        if (each.metric, each.percent) == ("itl_ms", 50)
    ]
    assert change.ratio == pytest.approx(2, rel=1e-3)
    assert (change.value_a, change.value_b) == (pytest.approx(100, abs=0.01), pytest.approx(200, abs=0.01))


def test_of_one_repetition_nobody_knows_how_far_a_rate_scatters():
    def once(gap_s):
        whole = a_result(gap_s=gap_s)
        one = {**whole["results"][0]["samples"], "output_tokens_per_s": [[[1 / gap_s]]]}
        return {**whole, "results": [{**whole["results"][0], "samples": one}]}

    found = compare(once(0.1), once(0.9))
    (rate,) = [change for change in found.changes if change.metric == "output_tokens_per_s"]
    assert (rate.verdict, rate.is_slower_by(0.0)) == ("unknown", False)


def test_what_only_one_of_them_has_is_named():
    other = Arm("server", "mixed", "", Point(4, 64, 16))
    found = compare(a_result(arms=(ARM, other)), a_result())
    assert (len(found.only_a), found.only_b) == (1, ())
    assert "mixed" in found.only_a[0]


def test_slower_counts_only_if_the_whole_interval_is_beyond_the_margin():
    found = compare(a_result(), a_result(gap_s=0.11))
    assert any(change.metric == "itl_ms" for change in found.slower(0.05))
    assert not any(change.metric == "itl_ms" for change in found.slower(0.12))
    assert compare(a_result(gap_s=0.11), a_result()).slower(0.0) == []


@pytest.mark.parametrize(
    ("ratio", "low", "high", "more_is_better", "slower"),
    [
        (1.2, 1.06, 1.4, False, True),
        (1.2, 1.04, 1.4, False, False),
        (0.8, 0.7, 0.94, True, True),
        (0.8, 0.7, 0.96, True, False),
        (1.2, 1.06, 1.4, True, False),
    ],
)
def test_what_the_noise_leaves_possible_decides_whether_it_is_slower(
    ratio, low, high, more_is_better, slower
):
    interval = Interval(low, high)
    change = Change("server", "sweep", "", ARM.point, "x", 50, 1.0, ratio, ratio, interval, more_is_better)
    assert change.is_slower_by(0.05) is slower


def test_runs_on_other_models_and_such_as_were_stopped_are_told_apart():
    told = differing(a_result(), a_result(model="large", stopped="interrupted"))
    assert told == ["model: small / large", "B was stopped: interrupted"]


def test_the_command_compares_and_ends_well_unless_told_to_fail(tmp_path):
    quick, slow = write(tmp_path, quick=a_result(), slow=a_result(first_s=1.0, gap_s=0.2))
    told = compared(quick, slow)
    assert told.exit_code == 0
    assert "worse" in told.stdout
    assert max(map(len, told.stdout.splitlines())) <= 80
    assert compared(quick, quick, "--fail-if-slower", "0%").exit_code == 0
    assert "no difference that the noise" in " ".join(compared(quick, quick).stdout.split())
    failed = compared(quick, slow, "--fail-if-slower", "5%", "--json")
    assert failed.exit_code == 1
    assert json.loads(failed.stdout)["slower"]
    assert compared(slow, quick, "--fail-if-slower", "5").exit_code == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"kind": "other"}',
        '{"kind": "forebay bench", "format": 9}',
        '{"kind": "forebay bench", "format": 1}',
    ],
)
def test_what_is_no_result_is_refused_in_one_line(tmp_path, text):
    file, (good,) = tmp_path / "bad.json", write(tmp_path, good=a_result())
    file.write_text(text)
    told = compared(good, str(file))
    assert (told.exit_code, len(told.stderr.splitlines())) == (2, 1)
    assert compared(good, str(tmp_path / "nosuch")).exit_code == 2


@pytest.mark.parametrize("text", ["", "x", "5%%", "-1", "1e3"])
def test_a_margin_is_a_percentage(text):
    with pytest.raises(SettingsError):
        share(text)
    assert (share("5%"), share("2.5")) == (0.05, 0.025)


# --- the page ---------------------------------------------------------------------------------------------


def test_the_page_fetches_nothing_and_asks_no_other_host():
    text = page(a_result())
    assert re.findall(r"""(?:src|href|action)=["']?([^"'\s>]*)""", text) == ["data:,"]
    for word in ("@import", "url(", "fetch(", "XMLHttpRequest", "<iframe", "<img", "import("):
        assert word not in text, word
    assert "default-src 'none'" in text


def test_what_a_server_says_stays_text_on_the_page():
    text = page(a_result(model=SCRIPT, failed=(refused(0.0, 0.1),)))
    assert "<script>alert" not in text
    assert "1 x refused" in text or "3 x refused server_is_overloaded" in text
    data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert json.loads(data.group(1))[0]["point"]["concurrency"] == 2
    assert json.loads(_embedded(SCRIPT)) == SCRIPT
    assert "</script" not in _embedded(SCRIPT)


def test_a_result_without_anything_measured_is_a_page_all_the_same():
    assert "<table>" in page(a_result(arms=()))


# --- files, addresses, settings ---------------------------------------------------------------------------


def test_a_result_holds_no_key_and_no_infinity(tmp_path):
    overloaded = a_result()
    text = results.as_json(overloaded)
    assert "fb-secret" not in text
    (file,) = write(tmp_path, a=overloaded)
    assert results.read(tmp_path / "a.json") == json.loads(text)
    assert [each.name for each in tmp_path.iterdir()] == [file.rsplit("/", 1)[1]]


def test_scenarios_that_were_not_run_have_no_figures():
    assert scenario_figures({ARM: [one_pass(steady())]}, []) == {}


def test_an_address_is_taken_with_or_without_its_end_and_scheme():
    for url in (
        "http://127.0.0.1:8000",
        "127.0.0.1:8000",
        "http://127.0.0.1:8000/v1/",
        "http://127.0.0.1:8000/v1",
    ):
        assert Address.read(url) == Address("http://127.0.0.1:8000/v1", "127.0.0.1:8000", is_local=True)
    far = Address.read("http://gateway/some/api")
    assert (far.api, far.host, far.is_local) == ("http://gateway/some/api/v1", "gateway", False)
    assert Address.read("http://[::1]:9/v1").host == "[::1]:9"


def test_the_local_gateway_is_where_it_listens_and_an_address_says_which_one_is_meant():
    settings = Settings(port=8123)
    assert local_url(settings) == "http://127.0.0.1:8123"
    assert local_url(settings.model_copy(update={"host": "0.0.0.0"})) == "http://127.0.0.1:8123"
    assert local_url(settings.model_copy(update={"host": "::1"})) == "http://[::1]:8123"
    assert settings_of(Address.read("127.0.0.1:9000"), settings).port == 9000
    assert settings_of(Address.read("http://localhost"), settings).port == 8123


def test_a_peers_model_is_a_folder_by_its_path_or_by_its_name_at_home(tmp_path):
    place = small_model_folder(tmp_path / "models" / "small")
    assert model_folder(str(place), tmp_path / "nowhere").path == place
    assert model_folder("org/small", tmp_path).path == place
    assert served_name(str(place), None) == served_name(None, model_folder("small", tmp_path)) == "small"
    assert (served_name("other", None), served_name(None, None)) == ("other", None)


def small_model_folder(place):
    place.mkdir(parents=True)
    for name, text in (
        ("config.json", '{"vocab_size": 9, "max_position_embeddings": 64, "model_type": "llama"}'),
        ("tokenizer.json", "{}"),
        ("model.safetensors", ""),
    ):
        (place / name).write_text(text)
    return place


def test_memory_is_read_from_what_servers_say_of_it():
    assert footprint_bytes('{"worker": {"footprint_bytes": 5}}') == 5
    for text in ("", "{}", '{"worker": null}', '{"worker": {"footprint_bytes": null}}', "[1]"):
        assert footprint_bytes(text) is None
    assert resident_bytes("# HELP x\nprocess_resident_memory_bytes 1.5e+06\n") == 1_500_000
    for text in ("", "process_resident_memory_bytes", "process_resident_memory_bytes +Inf"):
        assert resident_bytes(text) is None


def test_lists_are_put_in_order_without_doubles():
    assert numbers("concurrency", "4,1,4", int) == (1, 4)
    assert works(["mixed", "sweep"]) == ("sweep", "mixed")
    assert works([]) == ("sweep", "lanes", "mixed")


def test_a_sweep_goes_along_one_axis_at_a_time_with_the_others_at_their_middle():
    points = Axes((1, 4, 16), (64, 256, 1024), (8, 16)).points()
    assert points == (
        Point(1, 256, 8), Point(4, 256, 8), Point(16, 256, 8), Point(4, 64, 8), Point(4, 1024, 8),
        Point(4, 256, 16),
    )  # fmt: skip


@given(st.floats(0, 60), st.floats(1, 3), st.integers(100, 5000))
def test_a_fit_finds_the_words_that_a_server_counts_as_so_many_tokens(base, per_word, tokens):
    counted = tuple(round(base + per_word * words) for words in CALIBRATION_WORDS)
    fit = Fit.of(counted)
    assert fit.measured
    assert base + per_word * fit.words(tokens) == pytest.approx(tokens, rel=0.02, abs=6)


def test_a_server_that_does_not_count_is_guessed_at():
    for counted in ((None, 3), (20, None), (20, 21)):
        assert not Fit.of(counted).measured


def test_prompts_are_of_their_run_and_purpose_and_otherwise_the_same():
    one, other = (Prompts(Fit(0, 1), 1, salt) for salt in ("a", "b"))
    assert one.text(50, "x", 1) == one.text(50, "x", 1)
    assert (
        len({one.text(50, "x", 1), one.text(50, "x", 2), one.text(50, "y", 1), other.text(50, "x", 1)}) == 4
    )
