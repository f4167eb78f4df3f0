"""The doctor's verdicts, from readings of Macs and Linux machines as they were recorded or are documented."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ops.doctor import device, house, machine, model_files, places, pressure
from ops.doctor.device import Device, Said
from ops.doctor.finding import GB, Finding
from ops.doctor.house import Entry, Keeper
from ops.doctor.machine import Machine
from ops.doctor.model_files import Family, WeightFile, Weights
from ops.doctor.places import Port
from shared.limits import GIB

M4 = Machine("Darwin", "Apple M4 Max", "arm64", 16, 64 * GIB, "15.6.1")
# What mx.device_info() says on a Mac of 64 GiB, by way of the probe.
METAL = Device("0.32.4", "Apple M4 Max", True, True, 51_539_607_552, 64 * GIB, 499_000)
CPU = Device("0.32.4", "cpu", False, False, 0, 32 * GIB, 0)
FOLDER = 0o040000
FILE = 0o100000
INFINITY = 2**63 - 1


def told(found: Device) -> Said:
    return Said(0, json.dumps({name: getattr(found, name) for name in Device.__slots__}))


VERDICTS: list[tuple[Finding, str, str]] = [
    (machine.judge_machine(M4), "good", "Apple M4 Max, 16 cores, 64.0 GiB of memory, macOS 15.6.1"),
    (machine.judge_machine(replace(M4, release="13.7")), "bad", "macOS 13.7"),
    (machine.judge_machine(replace(M4, release="14.0")), "good", ""),
    (machine.judge_machine(replace(M4, architecture="x86_64", translated=True)), "bad", "Rosetta"),
    (machine.judge_machine(replace(M4, architecture="x86_64")), "bad", "x86_64"),
    (machine.judge_machine(Machine("Linux", "EPYC", "x86_64", 2, GIB, "6.1.0")), "good", "Linux 6.1.0"),
    (machine.judge_python("3.12.1", ">=3.11"), "good", "3.12.1"),
    (machine.judge_python("3.10.9", ">=3.11"), "bad", "3.10.9"),
    (machine.judge_clock(1_704_067_199.0), "bad", "before 2024"),
    (machine.judge_clock(1_704_067_200.0), "good", ""),
    # launchd gives a terminal 256 now, and no hard limit.
    (machine.judge_descriptors(256, INFINITY, INFINITY), "good", "no hard limit"),
    (machine.judge_descriptors(1024, 4096, INFINITY), "good", "4096 at most"),
    (machine.judge_descriptors(256, 4095, INFINITY), "warn", "4095 at most"),
    (machine.judge_descriptors(64, 255, INFINITY), "bad", "too few"),
    (device.judge_mlx(told(METAL), "Darwin"), "good", "the GPU of Apple M4 Max"),
    (device.judge_mlx(told(CPU), "Darwin"), "warn", "on the CPU"),
    (device.judge_mlx(told(CPU), "Linux"), "good", "on the CPU"),
    (device.judge_mlx(Said(None, ""), "Darwin"), "bad", "did not answer in time"),
    (device.judge_mlx(Said(-6, "", "[metal] no device\n\n"), "Darwin"), "bad", "SIGABRT: [metal] no device"),
    (device.judge_mlx(Said(1, "", "ImportError: no libmlx"), "Darwin"), "bad", "ImportError: no libmlx"),
    (device.judge_limits(METAL)[0], "good", "48.0 GiB of 64.0 GiB (75%)"),
    (device.judge_limits(METAL)[1], "good", "499000 buffers"),
    (device.judge_limits(replace(METAL, resource_limit=4096))[1], "warn", "4096"),
    (device.judge_limits(replace(METAL, working_set_bytes=24 * GIB))[0], "warn", "24.0 GiB"),
    (device.judge_wired("0\n"), "good", "macOS's own"),
    (device.judge_wired("57344\n"), "warn", "57344"),
    (device.judge_openblas(Path("/usr/lib/libopenblas.so.0")), "good", "libopenblas.so.0"),
    (device.judge_openblas(None), "warn", "isn't installed"),
    (pressure.judge_mac_level("1\n"), "good", "normal"),
    (pressure.judge_mac_level("2\n"), "warn", "warning"),
    (pressure.judge_mac_level("4\n"), "bad", "critical"),
    (pressure.judge_swap(3 * GIB, 64 * GIB), "good", "3.0 GiB"),
    (pressure.judge_swap(4 * GIB, 64 * GIB), "warn", "4.0 GiB"),
    (places.judge_disk("home", Path("/h"), GB - 1), "bad", "1.0 GB free"),
    (places.judge_disk("home", Path("/h"), 5 * GB - 1), "warn", "5.0 GB free"),
    (places.judge_disk("home", Path("/h"), 5 * GB), "good", ""),
    (places.judge_disk("home", Path("/h"), 90 * GB, 100 * GB), "warn", "prefix_disk_gb"),
    (places.judge_port(Port("127.0.0.1", 8000)), "good", "free"),
    (places.judge_port(Port("127.0.0.1", 8000, gateway="2 answers live")), "good", "own gateway; 2 answers"),
    (places.judge_port(Port("h", 8000, "Address in use", holder="nginx (process 7)")), "bad", "nginx"),
    (places.judge_socket(Path("/h/run/8000/admin"), 17, Path("/h"), 104), "good", "17 of the 104"),
    (places.judge_socket(Path("/tmp/forebay-0/admin"), 20, Path("/h"), 104), "warn", "/tmp/forebay-0"),
    (places.judge_socket(Path("/tmp/forebay-0/admin"), 101, Path("/h"), 104), "bad", "101 of the 104"),
    (house.judge_settings("", "a.toml"), "good", "a.toml"),
    (house.judge_settings("port: too high", "a.toml"), "bad", "port: too high"),
    (house.judge_door("0.0.0.0", 0, "host '0.0.0.0' can be reached"), "bad", "can be reached"),
    (house.judge_door("0.0.0.0", None, ""), "warn", "isn't readable"),
    (house.judge_door("0.0.0.0", 2, ""), "good", "one of 2 keys"),
    (house.judge_door("127.0.0.1", 0, ""), "good", "no key"),
    (house.judge_keys(None, ""), "good", "no key file"),
    (house.judge_keys(Entry(Path("k"), FILE | 0o600, 501), ""), "good", "its owner alone"),
    (house.judge_keys(Entry(Path("k"), FILE | 0o640, 501), ""), "warn", "others may read"),
    (house.judge_keys(Entry(Path("k"), FILE | 0o622, 501), "others may write to it"), "bad", "write"),
    (house.judge_home(None, Path("/h"), 501), "good", "isn't there yet"),
    (house.judge_home(Entry(Path("/h"), FOLDER | 0o755, 501), Path("/h"), 501), "good", ""),
    (house.judge_home(Entry(Path("/h"), FOLDER | 0o775, 501), Path("/h"), 501), "bad", "writable by others"),
    (house.judge_home(Entry(Path("/h"), FOLDER | 0o700, 0), Path("/h"), 501), "bad", "another user"),
    (house.judge_home(Entry(Path("/h"), FILE | 0o600, 501), Path("/h"), 501), "bad", "no folder"),
    (house.judge_keepers([], 25)[0], "good", "no service"),
    (house.judge_keepers([Keeper(Path("a.plist"), 35)], 25)[0], "good", "35 s"),
    # What launchd gives a job that says nothing.
    (house.judge_keepers([Keeper(Path("a.plist"), 20)], 25)[0], "bad", "gives 20 s"),
    (house.judge_keepers([Keeper(Path("a.plist"), None)], 25)[0], "warn", "doesn't say"),
    (house.judge_keepers([Keeper(Path("a.plist"), 40, intact=False)], 25)[0], "warn", "by hand"),
    (model_files.judge_rows(Said(0, '{"caches": "attention, window"}')), "good", "attention, window"),
    (model_files.judge_rows(Said(0, '{"caches": "attention, NovelCache"}')), "warn", "use NovelCache"),
    (model_files.judge_rows(Said(0, '{"problem": "Missing 3 parameters"}')), "bad", "Missing 3 parameters"),
    (model_files.judge_rows(Said(None, "")), "warn", "did not answer"),
    (model_files.judge_rows(Said(-11, "")), "bad", "SIGSEGV: it said nothing"),
    (model_files.judge_fit(20 * GIB, METAL, 0.8), "good", "20.0 GiB of the 38.4 GiB"),
    (model_files.judge_fit(31 * GIB, METAL, 0.8), "warn", "31.0 GiB"),
    (model_files.judge_fit(39 * GIB, METAL, 0.8), "bad", "39.0 GiB"),
]


def title(value: object) -> str:
    return value.check if isinstance(value, Finding) else str(value)[:24]


@pytest.mark.parametrize(("finding", "verdict", "words"), VERDICTS, ids=title)
def test_a_reading_has_its_verdict_and_its_words(finding: Finding, verdict: str, words: str) -> None:
    assert finding.verdict == verdict
    assert words in finding.says


@pytest.mark.parametrize("finding", [finding for finding, _, _ in VERDICTS], ids=title)
def test_whatever_is_not_good_says_what_to_do(finding: Finding) -> None:
    assert bool(finding.do) == (finding.verdict != "good")


def test_a_machine_without_metal_has_no_limits_of_metal() -> None:
    assert device.judge_limits(CPU) == []
    assert device.judge_limits(replace(CPU, is_gpu=True, name="NVIDIA")) == []


@pytest.mark.parametrize(
    ("text", "verdict"),
    [("full avg10=0.99 avg60=9", "good"), ("full avg10=1.00 x", "warn"), ("full avg10=10.00 x", "bad")],
)
def test_stalls_of_all_programs_count_and_those_of_some_do_not(text: str, verdict: str) -> None:
    finding = pressure.judge_stalls(f"some avg10=99.00 avg60=1.00 avg300=0.00 total=5\n{text}\n")
    assert finding.verdict == verdict


@pytest.mark.parametrize(
    "read",
    [
        lambda: pressure.judge_mac_level("3"),
        lambda: pressure.judge_mac_level(""),
        lambda: pressure.judge_stalls("some avg10=0.00"),
        lambda: device.judge_wired("unknown oid"),
        lambda: device.judge_mlx(Said(0, "Welcome"), "Darwin"),
        lambda: device.judge_mlx(Said(0, '{"version": "1"}'), "Darwin"),
        lambda: machine.judge_machine(replace(M4, release="")),
        lambda: model_files.indexed_names({"weight_map": {"a": 5}}),
        lambda: model_files.indexed_names([]),
    ],
)
def test_what_is_no_such_reading_is_a_value_error_which_the_doctor_reports(read: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (any words: the check says them)
        read()  # type: ignore[operator]  # a lambda of the list above


def whole(name: str) -> WeightFile:
    return WeightFile(name, 100, 100)


@pytest.mark.parametrize(
    ("weights", "verdict", "words"),
    [
        (Weights((whole("model.safetensors"),)), "good", "1 file of weights"),
        (Weights((whole("a"), whole("b")), frozenset("ab")), "good", "2 files"),
        (Weights((whole("a"),), frozenset("abcdef")), "bad", "missing: b, c, d and 2 more"),
        (Weights((whole("a"), whole("b")), frozenset("a")), "warn", "doesn't name: b"),
        (Weights((whole("a"), WeightFile("b", 99, 100))), "bad", "their own heads say: b"),
        (Weights((WeightFile("a", 12, None),)), "bad", "safetensors: a"),
    ],
)
def test_weights_are_held_against_their_index_and_their_heads(
    weights: Weights, verdict: str, words: str
) -> None:
    finding = model_files.judge_weights(weights)
    assert (finding.verdict, words in finding.says) == (verdict, True)


def test_a_head_tells_how_long_its_file_must_be() -> None:
    rest = json.dumps({"__metadata__": {}, "w": {"data_offsets": [0, 40]}, "b": {"data_offsets": [40, 64]}})
    head = len(rest).to_bytes(8, "little")
    assert model_files.head_bytes(head) == len(rest)
    assert model_files.expected_bytes(head, rest.encode()) == 8 + len(rest) + 64


@pytest.mark.parametrize("head", [b"", b"1234567", b"version ", (10**9).to_bytes(8, "little")])
def test_what_is_no_head_is_read_no_further(head: bytes) -> None:
    assert model_files.head_bytes(head) == 0
    assert model_files.expected_bytes(head, b"") is None


@pytest.mark.parametrize(
    "rest", [b"[]", b'{"w": 5}', b'{"w": {"data_offsets": []}}', b"\xff", b"[" * 100_000]
)
def test_a_head_of_another_form_is_no_head(rest: bytes) -> None:
    assert model_files.expected_bytes(len(rest).to_bytes(8, "little"), rest) is None


KNOWN = Family("llama", frozenset({"llama", "llama_next"}), {"mistral": "llama", "lost": "nowhere"})


@pytest.mark.parametrize(
    ("family", "verdict"),
    [
        (KNOWN, "good"),
        (replace(KNOWN, model_type="mistral"), "good"),
        (replace(KNOWN, model_type="lost"), "bad"),
        (replace(KNOWN, model_type="novel"), "bad"),
        (
            replace(
                KNOWN,
                model_type="novel",
                architectures=("Plain", "Next"),
                by_architecture={("novel", "Next"): "llama_next"},
            ),
            "good",
        ),
    ],
)
def test_a_type_is_known_as_mlx_lm_would_find_it(family: Family, verdict: str) -> None:
    assert model_files.judge_family(family).verdict == verdict


def test_packages_are_compared_with_what_is_asked_on_this_machine() -> None:
    asked = machine.applying(
        ["mlx-lm==0.32.2", "rich~=15.0", "nosuch>1; sys_platform == 'plan9'", "pytest; extra == 'dev'"]
    )
    assert [each.name for each in asked] == ["mlx-lm", "rich"]
    as_asked = machine.judge_packages(asked, {"mlx-lm": "0.32.2", "rich": "15.4.1"})
    assert [(each.verdict, each.says[:10]) for each in as_asked] == [("good", "2 packages")]
    wrong = machine.judge_packages(asked, {"mlx-lm": "0.32.3", "rich": None})
    assert [each.verdict for each in wrong] == ["bad", "bad"]
    assert "mlx-lm 0.32.3 is installed, and mlx-lm==0.32.2 is asked for" in wrong[0].says
    assert "rich isn't installed" in wrong[1].says
