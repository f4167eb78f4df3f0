"""The page shows what happens while it happens: floods, deaths, drains, a gateway that goes away."""

from tests.status_page.stage import GIB


def numbers(page):
    names = ("queued", "running", "refused", "speed")
    return {name: page.text(f"n-{name}") for name in names}


def test_an_idle_gateway_is_ready_and_says_so_in_a_word_a_colour_and_a_sentence(stage, page):
    stage.worker()
    page.open(stage.here.url)
    assert (page.word, page.tone, page.driver.title) == ("Ready", "good", "Ready · Forebay")
    page.until_says("Requests are answered. Nothing runs, nothing waits.")
    assert numbers(page) == {"queued": "0", "running": "0 of 4", "refused": "0", "speed": "0.0"}
    assert page.text("since").startswith("for ")
    assert "17.0 GiB" in page.text("memory-legend")
    assert page.text("memory-note").startswith("The budget for KV caches is 12.0 GiB.")


def test_what_was_before_the_page_was_opened_is_in_its_charts_and_its_table(stage, page):
    stage.worker()
    lately = [(50 + 2 * number, 0.0) for number in range(5)]
    stage.remembers([*lately, *((60 + 2 * number, 77.0) for number in range(30))])
    page.open(stage.here.url)
    page.until(lambda: "to 77.0." in page.find(".plot").get_attribute("aria-label"))
    page.click("#minutes-more summary")
    page.until_says("77.0", of="minutes")


def test_a_flood_shows_as_rows_a_growing_queue_and_refusals(stage, page):
    stage.answers(64)
    stage.worker()
    stage.pause(40)
    page.open(stage.here.url)
    stage.ask(4, max_tokens=300)
    page.until_says("4 answers run, nothing waits.")
    stage.ask(20, max_tokens=300)
    page.until(lambda: numbers(page)["queued"] == "8")
    page.until(lambda: numbers(page)["refused"] == "12")
    assert numbers(page)["running"] == "4 of 4"
    page.until_says("4 answers run, 8 wait. 12 requests were refused in the last 10 s.")
    assert "8 of 8" in page.text("lanes")
    bars = page.js("return [...document.querySelectorAll('#rows .row')].map((bar) => bar.title)")
    assert len(bars) == 4
    assert bars[0].startswith("interactive: ")
    assert "4 rows: 4 interactive." in page.find("#rows").get_attribute("aria-label")
    page.until(lambda: "none" not in page.find("figure:nth-of-type(2) .plot").get_attribute("aria-label"))


def test_a_death_and_a_recovery_are_told_with_cause_and_what_comes_next(stage, page):
    stage.answers(64)
    stage.worker()
    stage.pause(5)
    page.open(stage.here.url)
    stage.ask(2, max_tokens=64)
    page.until_says("2 answers run")
    stage.dies("killed", "signal 9")
    stage.backs_off(50.0, rung=1)
    page.until(lambda: (page.word, page.tone) == ("Restarting", "bad"))
    page.until_says("The worker was killed from outside. The next one starts in", "2 answers wait for it")
    page.until_says("Was killed from outside", "signal 9", "not yet", of="deaths")
    assert page.text("announce") == "Restarting. The worker was killed from outside."
    assert page.find("#memory-bar").get_attribute("aria-label") == "No worker tells of its memory."
    stage.backs_off(50.0, rung=1, breaker="open")
    page.until(lambda: page.word == "Held back")
    page.until_says("One is tried in", "refused with 503")
    stage.worker(pause_at=7)
    page.until(lambda: page.word == "Ready")
    page.until_says("2 answers run, nothing waits.")
    page.until_says("2 had begun before and go on.", of="rows-note")
    assert "not yet" not in page.text("deaths")
    page.until(lambda: "1 end of a worker." in page.find(".plot").get_attribute("aria-label"))


def test_less_memory_is_said_and_shown(stage, page):
    stage.worker()
    page.open(stage.here.url)
    stage.tells(budget=8 * GIB)
    page.until(lambda: page.word == "Ready, with care")
    page.until_says("Memory is short: KV caches may take 8.00 GiB now, of 12.0 GiB.")
    assert "Given back, for now4.00 GiB" in page.text("memory-legend")


def test_draining_says_what_is_left_and_how_it_ends(stage, page):
    stage.worker()
    stage.pause(2)
    page.open(stage.here.url)
    stage.ask(1, max_tokens=12)
    page.until_says("1 answer runs")
    stage.drain(on=True)
    page.until(lambda: (page.word, page.tone) == ("Draining", "busy"))
    page.until_says("Nothing new is taken. 1 answer still runs or waits, and may end.")
    stage.pause(None)
    page.until_says("Nothing runs any more.")
    stage.drain(on=False)
    page.until(lambda: page.word == "Ready")


def test_a_gateway_that_goes_away_leaves_its_last_picture_greyed_until_it_is_back(stage, page):
    page.expected = ("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")
    stage.worker()
    port = stage.here.port
    page.open(stage.here.url)
    page.until(lambda: len(page.text("n-speed")) and "GiB" in page.text("memory-legend"))
    stage.shut()
    page.until(lambda: (page.word, page.tone) == ("Away", "off"))
    page.until_says("The gateway doesn't answer. What you see below is from then.")
    assert "since" in page.text("since")
    assert float(page.js("return getComputedStyle(document.getElementById('picture')).opacity")) < 1
    assert "17.0 GiB" in page.text("memory-legend")
    stage.open(port)
    page.until(lambda: (page.word, page.tone) == ("No worker", "bad"))
    stage.worker()
    page.until(lambda: (page.word, page.tone) == ("Ready", "good"))


def test_what_a_worker_s_end_says_is_text_whatever_it_has_in_it(stage, page):
    hostile = '<script>document.title = "taken"</script><img src=x onerror=alert(1)>'
    stage.worker()
    page.open(stage.here.url)
    stage.dies("crash", hostile)
    page.until_says(hostile, of="deaths")
    assert page.js("return document.querySelectorAll('main script, main img').length") == 0
    assert page.driver.title == "Restarting · Forebay"
