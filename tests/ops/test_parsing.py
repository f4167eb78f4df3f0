"""What a long body costs is measured for every endpoint that takes conversations."""

import json

from ops import parsing


def test_each_endpoints_body_is_taken_apart_and_timed(demo_folder, tmp_path, capsys):
    file = tmp_path / "found.json"
    words = ["--model", str(demo_folder.path), "--tokens", "1000", "--repeats", "2", "--json", str(file)]
    assert parsing.main(words) == 0
    found = json.loads(file.read_text())
    for endpoint in ("chat", "responses", "messages"):
        assert found[endpoint]["tokens"] > 1000
        assert {name: len(times) for name, times in found[endpoint]["ms"].items()} == {
            "fields": 2,
            "encoding": 2,
            "names": 2,
        }
        assert min(min(times) for times in found[endpoint]["ms"].values()) > 0
    assert capsys.readouterr().out.count(" ms") == 9
