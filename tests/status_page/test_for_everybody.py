"""The page can be read and used by everybody: on a phone, in the dark, by keyboard, by a screen reader."""

import itertools

import pytest
from selenium.webdriver.common.keys import Keys

# Every element that has text of its own and is seen, with the contrast of its letters to what lies behind.
CONTRASTS = """
const rgb = (colour) => {
  const parts = colour.match(/[\\d.]+/g).map(Number);
  return colour.startsWith("color(") ? parts.map((part, place) => (place < 3 ? 255 * part : part)) : parts;
};
const light = (parts) => parts.slice(0, 3).map((part) => part / 255)
  .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
  .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
const behind = (element) => {
  for (let each = element; each; each = each.parentElement) {
    const parts = rgb(getComputedStyle(each).backgroundColor);
    if (parts.length < 4 || parts[3] > 0) return parts;
  }
};
const seen = (element) => element.checkVisibility() && !element.closest(".unseen, .skip, canvas");
const own = (element) => [...element.childNodes].some((each) => each.nodeType === 3 && each.data.trim());
return [...document.body.querySelectorAll("*")].filter((each) => own(each) && seen(each)).map((each) => {
  const [a, b] = [light(rgb(getComputedStyle(each).color)), light(behind(each))].sort((x, y) => y - x);
  return [(a + 0.05) / (b + 0.05), each.textContent.trim().slice(0, 40)];
});
"""
# What sticks out of its card, or of the page.
STICKING_OUT = """
const box = (element) => element.getBoundingClientRect();
const out = (inner, outer) => inner.right > outer.right + 0.5 || inner.left < outer.left - 0.5;
return [...document.querySelectorAll("main *")]
  .filter((each) => each.checkVisibility() && !each.closest(".unseen, .scroll, .plot"))
  .filter((each) => out(box(each), box(each.closest(".card") ?? document.body)))
  .map((each) => each.outerHTML.slice(0, 120));
"""
NEED_NAMES = {"button", "link", "textbox", "checkbox", "image", "table", "region", "navigation", "figure"}
LONG = "x" * 400


def everything(stage, page, **how):
    """Show a page that has something of everything in it."""
    stage.answers(64)
    stage.worker(slots=4, pause_at=5)
    for number in range(2):
        stage.here.proxy.quarantine.add(
            f"{number:016x}",
            cause="loop_exception",
            detail="",
            key="k",
            lane="interactive",
            prompt_tokens=120_000,
        )
    page.open(stage.here.url, **how)
    stage.dies("memory", LONG)
    stage.backs_off(0.0, rung=1)
    stage.worker(slots=4, pause_at=5)
    stage.ask(7, max_tokens=300)
    stage.tells(budget=9 << 30)
    page.until_says("4 answers run, 3 wait.")
    page.until_says(LONG[:300], of="deaths")
    page.js("for (const each of document.querySelectorAll('details')) each.open = true")
    page.until(lambda: page.js("return document.querySelectorAll('.uplot').length") == 4)
    page.until(lambda: page.text("minutes"))


def test_everything_is_legible_named_in_order_and_within_its_place(stage, page):
    everything(stage, page, width=1400)
    for scheme in ("light", "dark"):
        for width in (1400, 360):
            page.look(width, scheme=scheme)
            page.until(lambda width=width: page.js("return innerWidth") == width)
            contrasts = page.js(CONTRASTS)
            assert len(contrasts) > 80
            assert [each for each in contrasts if each[0] < 4.5] == []
            assert page.js("return document.documentElement.scrollWidth") == width
            assert page.js(STICKING_OUT) == []
    levels = page.js("return [...document.querySelectorAll('h1,h2,h3')].map((each) => +each.tagName[1])")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    nodes = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    told = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"]
    ]
    roles = {role for role, _ in told}
    assert {"banner", "main", "navigation", "button", "textbox", "table", "image", "status"} <= roles
    assert [role for role, name in told if role in NEED_NAMES and not name.strip()] == []
    assert (
        page.js("return [...document.querySelectorAll('table')].filter((each) => !each.caption).length") == 0
    )
    assert page.js("return document.documentElement.lang") == "en"


def test_what_listens_is_told_of_a_change_and_not_of_each_second(stage, page):
    stage.worker()
    page.open(stage.here.url)
    page.js(
        "window.heard = []; const announce = document.getElementById('announce');"
        "new MutationObserver(() => heard.push(announce.textContent))"
        ".observe(announce, {childList: true, characterData: true, subtree: true})"
    )
    first = page.text("since")
    page.until(lambda: page.text("since") != first)
    assert page.js("return heard") == []
    stage.drain(on=True)
    page.until(lambda: page.word == "Draining")
    assert page.js("return heard") == ["Draining. Nothing new is taken."]
    assert page.js("return document.querySelectorAll('[aria-live]:not([aria-live=polite])').length") == 0


def test_by_keyboard_one_comes_past_the_head_and_sees_where_one_is(stage, page):
    stage.worker()
    page.open(stage.here.url)
    focused = "return document.activeElement.getAttribute('href') ?? document.activeElement.id"
    page.find("body").send_keys(Keys.TAB)
    assert page.js(focused) == "#main"
    style = page.js(
        "const of = getComputedStyle(document.activeElement); return [of.outlineStyle, of.outlineWidth]"
    )
    assert style == ["solid", "3px"]
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert page.js(focused) == "main"


def test_with_reduced_motion_nothing_moves(stage, page):
    stage.worker()
    page.open(stage.here.url)
    moves = "return getComputedStyle(document.querySelector('.bar .share')).transitionDuration"
    assert page.js(moves) == "0.4s"
    features = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    assert page.js(moves) == "0s"


# --- orders -----------------------------------------------------------------------------------------------


@pytest.fixture
def key(stage):
    """Return an admin key that is in force."""
    headers = stage.here.add_key("night", admin=True)
    stage.do(stage.here.proxy.admin.reload())
    return headers["Authorization"].removeprefix("Bearer ")


def give_key(page, key, *, keep=False):
    page.find("#key").send_keys(key)
    if keep:
        page.click("#keep")
    page.click("#key-form button")


def order(page, number):
    return f"#order-list > li:nth-child({number}) > .line button"


def test_orders_need_a_key_that_is_right_and_that_no_address_ever_has(stage, page, key):
    page.expected = ("401",)
    stage.worker()
    page.open(stage.here.url)
    page.click(order(page, 1))
    assert page.text("order-said") == "Orders need the admin key: enter it first."
    assert page.js("return document.activeElement.id") == "key"
    give_key(page, "fb-wrong", keep=True)
    page.click(order(page, 3))
    page.until_says("That key isn't taken:", of="order-said")
    assert page.find("#key-form").is_displayed()
    assert page.js("return sessionStorage.length") == 0
    page.click("#keep")
    give_key(page, key)
    page.click(order(page, 3))
    page.until_says("Lanes and keys were read again.", of="order-said")
    assert not page.find("#key-form").is_displayed()
    assert page.js("return sessionStorage.length + localStorage.length") == 0
    assert key not in page.js("return location.href + document.documentElement.outerHTML")
    page.driver.refresh()
    page.until(lambda: page.word == "Ready")
    assert page.find("#key-form").is_displayed()


def test_draining_is_asked_for_once_more_in_place_and_is_undone_at_once(stage, page, key):
    stage.worker()
    page.open(stage.here.url)
    give_key(page, key, keep=True)
    page.driver.refresh()
    page.until(lambda: page.word == "Ready")
    page.click(order(page, 1))
    assert page.js("return document.activeElement.textContent") == "No"
    page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert page.driver.find_elements("css selector", ".ask") == []
    assert page.js("return document.activeElement.textContent") == "Drain"
    page.click(order(page, 1))
    page.click(".ask .grave")
    page.until(lambda: page.word == "Draining")
    assert page.text("order-said") == "Nothing new is taken."
    page.until(lambda: page.find(order(page, 1)).text == "Open again")
    page.click(order(page, 1))
    page.until(lambda: page.word == "Ready")
    page.click("#key-forget")
    assert page.js("return sessionStorage.length") == 0


def test_a_restart_is_followed_to_its_end(stage, page, key):
    stage.worker()
    stage.pause(3)
    page.open(stage.here.url)
    stage.ask(1, max_tokens=12)
    page.until_says("1 answer runs")
    give_key(page, key)
    page.click(order(page, 2))
    page.click(".ask .check input")
    page.click(".ask .grave")
    page.until(lambda: page.word == "About to restart")
    page.until_says("The worker is replaced once what runs has ended.", of="order-said")
    stage.pause(None)
    stage.wait(lambda here: here.proxy.admin._restart.phase == "restarting")
    stage.dies("planned", "")
    page.until_says("Was replaced as ordered", of="deaths")
    stage.worker()
    page.until_says("The worker was replaced in", of="order-said")
    page.until(lambda: page.word == "Ready")


def test_what_can_t_be_done_now_says_why(stage, page, key):
    page.expected = ("409",)
    page.open(stage.here.url)
    give_key(page, key)
    page.click(order(page, 2))
    page.click(".ask .grave")
    page.until_says("Not done: there is no worker to replace: it is absent", of="order-said")


def test_a_quarantined_request_is_cleared_from_its_line(stage, page, key):
    stage.worker()
    for number in range(2):
        stage.here.proxy.quarantine.add(
            f"{number:016x}", cause="crash", detail="", key="k", lane="batch", prompt_tokens=8
        )
    page.open(stage.here.url)
    page.until_says("2 requests aren't run", of="quarantine-note")
    give_key(page, key)
    page.click("#quarantined tr:nth-child(2) button")
    page.click(".ask .grave")
    page.until_says("1 request isn't run", of="quarantine-note")
    assert "0000000000000000 is cleared." in page.text("order-said")
    assert [each.fingerprint for each in stage.here.proxy.quarantine.entries()] == ["0000000000000001"]
