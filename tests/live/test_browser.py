"""The page in a real browser: what a person sees, reaches by keyboard, and what other sites can not do through it.

Debian's chromium, driven by playwright; axe judges what can be perceived and used by everyone.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser
from playwright.sync_api import Page
from playwright.sync_api import expect
from playwright.sync_api import sync_playwright
from tests.answering import Answering
from tests.answering import answering
from tests.explain.cases import words
from tests.live.test_explain import Talk
from tests.live.wire import HOST
from tests.live.wire import PATIENCE
from tests.live.wire import Mitmdump
from tests.live.wire import mitmdump
from tests.live.wire import until

from servers import Flags
from servers import start
from servers import tiny_model

pytestmark = pytest.mark.live

TOKEN = "a-token-that-nobody-guesses"
HOSTILE = "<img src=x onerror=alert(1)>\u202e"
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-proxy-server"),
    "--host-resolver-rules=MAP evil.example 127.0.0.1",
)
LONGER = 3500  # milliseconds: more than the page's script waits before it asks again


@dataclass
class Site:
    """The page, and who makes traffic behind it."""

    url: str
    talk: Talk
    proxy: Mitmdump


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    where = tmp_path_factory.mktemp("browser")
    with (
        start(tiny_model(), Flags(n_parallel=2, n_ctx=8192)) as server,
        mitmdump(server.port, where / "proxy", toki_text="true", toki_token=TOKEN) as proxy,
    ):
        until(lambda: "getting to know" in proxy.log or "afresh" in proxy.log)
        healthy, clock = Talk(proxy), Talk(proxy)
        for n in range(4):
            healthy.turn(words(60, "plain"), words(30, f"p{n}"), model=HOSTILE)
        for n in range(3):
            system = f"{words(60, 'intro')}\nNow: 2026-03-10T09:15:0{n}Z\n{words(150, 'rules')}"
            clock.turn(system, words(40, f"q{n}"))
        until(lambda: len(proxy.rows(table="findings")) >= 2)
        yield Site(f"http://{HOST}:{proxy.port}/toki", healthy, proxy)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None and os.environ.get("CI") != "true":
        pytest.skip("chromium is missing: apt-get install chromium")
    assert program, "chromium is missing: apt-get install chromium"
    with tempfile.TemporaryDirectory(prefix="toki-chromium-") as home, sync_playwright() as playwright:
        environment = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        browser = playwright.chromium.launch(
            executable_path=program, args=list(FLAGS), env={**environment, "HOME": home}, timeout=1000 * PATIENCE
        )
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Browser, site: Site) -> Iterator[Page]:
    """A window at the overview. Complaints of the browser, dialogues, and requests to elsewhere fail the test."""
    trouble: list[str] = []
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(1000 * PATIENCE)
    found = context.new_page()
    found.on("console", lambda message: trouble.append(message.text))
    found.on("pageerror", lambda error: trouble.append(str(error)))
    found.on("dialog", lambda dialog: trouble.append(dialog.message))
    found.on("request", lambda asked: trouble.extend([] if asked.url.startswith(f"{site.url}/") else [asked.url]))
    found.goto(f"{site.url}/")
    yield found
    context.close()
    assert trouble == []


def test_a_cause_leads_to_its_request_and_to_what_changed(page: Page, site: Site) -> None:
    expect(page.get_by_role("heading", name="a clock in the system text")).to_be_visible()
    page.get_by_role("region", name="Processed again, and why").get_by_role("link").first.click()
    expect(page.locator("del")).to_contain_text("Z")
    expect(page.get_by_text("The text around the first difference")).to_be_visible()
    assert page.locator("ins").inner_text() != page.locator("del").inner_text()
    page.goto(f"{site.url}/requests/3")
    page.get_by_role("link", name="previous in the conversation").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Request 2")


def test_everything_is_reached_by_keyboard(page: Page, site: Site) -> None:
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Requests", exact=True)).to_be_focused()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "one sees where one is"
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Requests", level=1)).to_be_visible()
    first = page.get_by_role("rowheader").first.get_by_role("link")
    first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Request {len(site.proxy.rows())}")


@pytest.mark.parametrize("scripts", [True, False])
def test_a_list_is_narrowed_down_by_keyboard(chromium: Browser, site: Site, scripts: bool) -> None:
    misses = [str(row["id"]) for row in reversed(site.proxy.rows()) if row["outcome"] == "miss"]
    assert 0 < len(misses) < len(site.proxy.rows())
    context = chromium.new_context(java_script_enabled=scripts)
    page = context.new_page()
    page.goto(f"{site.url}/requests")
    page.get_by_role("combobox", name="outcome").focus()
    page.keyboard.type("miss")
    for name in ("action", "cause", "endpoint"):
        page.keyboard.press("Tab")
        expect(page.get_by_role("combobox", name=name)).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.type("no such model")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No requests.")).to_be_visible()
    expect(page.get_by_role("combobox", name="outcome")).to_have_value("miss")
    page.get_by_role("combobox", name="model").fill("")
    page.get_by_role("button", name="Show").press("Enter")
    expect(page).to_have_url(re.compile("outcome=miss"))
    assert page.get_by_role("rowheader").all_inner_texts() == misses
    page.get_by_role("link", name="Show all").click()
    expect(page).to_have_url(f"{site.url}/requests")
    context.close()


def test_figures_of_a_chart_open_by_keyboard(page: Page, site: Site) -> None:
    summary = page.locator("#timeline summary")
    summary.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#timeline table")).to_be_visible()
    for _ in range(2):  # the second one is asked for once the first is shown
        with page.expect_response(f"{site.url}/"):
            pass
    expect(page.locator("#timeline table")).to_be_visible()


def test_it_is_brought_up_to_date_until_one_says_stop(page: Page, site: Site) -> None:
    site.talk.turn(words(60, "plain"), words(30, "later"), model=HOSTILE)
    number = len(until(lambda: [row for row in site.proxy.rows() if row["id"] > 7]))
    latest = page.locator("#latest").get_by_role("rowheader").first
    expect(latest).to_have_text(str(7 + number))
    button = page.get_by_role("button", name="Live")
    button.press("Space")
    expect(button).to_have_attribute("aria-pressed", "false")
    shown = page.locator("main").inner_html()
    site.talk.turn(words(60, "plain"), words(30, "later still"), model=HOSTILE)
    page.wait_for_timeout(LONGER)
    assert page.locator("main").inner_html() == shown
    button.press("Space")
    expect(latest).to_have_text(str(8 + number))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_wrong(page: Page, site: Site, scheme: str) -> None:
    """Contrast of all texts, names, roles, headings, the order of the keyboard."""
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in background[4:-1].split(",")) > 384) is (scheme == "light")
    last = len(site.proxy.rows())
    lists = ("requests?outcome=miss", "conversations") if scheme == "light" else ("requests",)
    for path in ("", *lists, f"requests/{last}", "conversations/1"):
        page.goto(f"{site.url}/{path}")
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()


def test_a_narrow_window_scrolls_in_one_direction(page: Page, site: Site) -> None:
    page.set_viewport_size({"width": 360, "height": 700})
    for path in ("", "requests", "requests/5", "conversations/1"):
        page.goto(f"{site.url}/{path}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_hostile_names_are_text(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/conversations")
    expect(page.get_by_text("<img src=x onerror=alert(1)>\\u202e").first).to_be_visible()
    assert page.locator("img").count() == 0


def test_without_scripts_it_shows_the_same(chromium: Browser, site: Site) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{site.url}/")
    expect(page.get_by_role("heading", name="Reuse over time")).to_be_visible()
    expect(page.get_by_role("button")).to_have_count(0)
    context.close()


def test_from_elsewhere_the_browser_asks_for_the_token(chromium: Browser, site: Site) -> None:
    """As behind a proxy: then a client may be anywhere."""
    for password, status in (("wrong", 401), (TOKEN, 200)):
        context = chromium.new_context(
            http_credentials={"username": "me", "password": password},
            extra_http_headers={"X-Forwarded-For": "192.168.1.20"},
        )
        page = context.new_page()
        answer = page.goto(f"{site.url}/")
        assert answer is not None
        assert answer.status == status
        if status == 200:
            expect(page.get_by_role("button", name="Live")).to_be_visible()
        context.close()


def test_a_name_that_leads_here_is_not_believed(chromium: Browser, site: Site) -> None:
    context = chromium.new_context()
    answer = context.new_page().goto(f"http://evil.example:{site.proxy.port}/toki/")
    assert answer is not None
    assert answer.status == 403
    context.close()


EVIL = """<!doctype html><title>trying</title><a href="AT/">a link</a><iframe src="AT/"></iframe>
<form method="post" action="AT/api/forget"><button>forget</button></form>
<script>
  const tries = [{}, {mode: "no-cors"}, {credentials: "include"}, {method: "POST", mode: "no-cors"}];
  const tried = tries.map(one => fetch("AT/api/overview", one).then(a => a.text(), () => ""));
  Promise.all(tried).then(texts => document.title = texts.join("") ? "read" : "nothing");
</script>"""


def test_another_site_gets_nothing_and_changes_nothing(chromium: Browser, site: Site) -> None:
    """Even one on this machine, in the browser of someone who has typed the token in."""

    class Evil(Answering):
        """A site that tries to read the page and to change something."""

        def do_GET(self) -> None:
            self.answer(200, EVIL.replace("AT", site.url).encode(), Content_Type="text/html")

    with answering(Evil) as port:
        context = chromium.new_context(
            http_credentials={"username": "me", "password": TOKEN, "send": "always", "origin": site.url[:-5]}
        )
        page = context.new_page()
        answers: list[tuple[str, int]] = []
        page.on("response", lambda answer: answers.append((answer.url, answer.status)))
        page.goto(f"http://{HOST}:{port}/")
        expect(page).to_have_title("nothing")
        asked = [status for url, status in answers if url.startswith(site.url)]
        assert set(asked) == {403}
        with page.expect_navigation() as forget:
            page.get_by_role("button", name="forget").click()
        assert forget.value is not None
        assert forget.value.status == 403
        page.goto(f"http://{HOST}:{port}/")
        page.get_by_role("link", name="a link").click()
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        context.close()
