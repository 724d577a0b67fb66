"""The page at `/` of a running `hotmetal serve` of the built-in model, in a real Chromium.

usage: page_test.py http://127.0.0.1:PORT FOLDER [http://127.0.0.1:PORT]
(needs the `selenium` package, chromium and chromedriver; the second server is of two models, `hotmetal-builtin` and `other`)

Sends, streams, stops, edits, answers again, says a system prompt and sampler settings, reads the gauge, uses the keys, dark
and light, a phone's width, and a reload; looks at every request that the browser makes, all of which go to this server, and at
its console, which stays empty. Saves what it looked like as FOLDER/*.png. Exits with a traceback at the first thing that is
wrong.
"""

import json
import os
import sys
import tempfile
import time

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys


class Page:
    def __init__(self, address, folder):
        self.address, self.folder = address, folder
        options = webdriver.ChromeOptions()
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        for flag in (
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={self.profile.name}", "--window-size=1280,800",
        ):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        if os.path.exists("/usr/bin/chromium"):
            options.binary_location = "/usr/bin/chromium"
        service = webdriver.ChromeService("/usr/bin/chromedriver") if os.path.exists("/usr/bin/chromedriver") else None
        self.browser = webdriver.Chrome(options=options, service=service)
        self.requests = []

    def open(self):
        self.browser.get(self.address)
        self.until(lambda: "hotmetal-builtin" in self.id("facts").text, "the model's name is shown")

    def id(self, name):
        return self.browser.find_element(By.ID, name)

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def script(self, text, *args):
        return self.browser.execute_script(text, *args)

    def until(self, condition, what, seconds=30):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"never: {what}"
            time.sleep(0.01)

    def is_answering(self):
        return self.id("stop").is_displayed()

    def texts(self, role):
        # At once: the page puts a new element in the place of the last with each piece of text.
        return self.script("return [...document.querySelectorAll(`.message.${arguments[0]} > .text`)].map((e) => e.textContent)", role)

    def notes(self):
        """What stands beside the buttons of each message."""
        return self.script("return [...document.querySelectorAll('.message .acts')].map((e) => e.querySelector('span')?.textContent)")

    def say(self, text):
        self.id("input").send_keys(text, Keys.ENTER)

    def answer_to(self, text):
        """Says it, and returns the whole answer."""
        self.say(text)
        self.until(lambda: self.texts("user")[-1:] == [text.replace("`", "")] and not self.is_answering(), "the answer is whole")
        assert self.texts("assistant")[-1], "it is not empty"
        return self.texts("assistant")[-1]

    def bodies(self):
        """What the page has sent to chat completions since it was asked last, as JSON."""
        bodies = []
        for entry in self.browser.get_log("performance"):
            event = json.loads(entry["message"])["message"]
            if event["method"] != "Network.requestWillBeSent":
                continue
            request = event["params"]["request"]
            # The browser begins with a page of its own.
            if not event["params"]["documentURL"].startswith("chrome:"):
                self.requests.append(request["url"])
            if request["url"] == f"{self.address}/v1/chat/completions":
                bodies.append(json.loads(request["postData"]))
        return bodies

    def body(self):
        (body,) = self.bodies()
        return body

    def slowly(self, bytes_per_second):
        self.browser.execute_cdp_cmd("Network.enable", {})
        conditions = {"offline": False, "latency": 0, "downloadThroughput": bytes_per_second, "uploadThroughput": -1}
        self.browser.execute_cdp_cmd("Network.emulateNetworkConditions", conditions)

    def setting(self, name, value):
        field = self.id(name)
        field.clear()
        field.send_keys(value, Keys.TAB)

    def press(self, letter):
        """Alt and a letter."""
        webdriver.ActionChains(self.browser).key_down(Keys.ALT).send_keys(letter).key_up(Keys.ALT).perform()

    def size(self, width, height, mobile=False):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 2 if mobile else 1, "mobile": mobile}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefers(self, scheme):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def ground(self):
        """How light the page's ground is, 0 to 255."""
        colour = self.script("return getComputedStyle(document.body).backgroundColor")
        numbers = [float(number) for number in colour.split("(")[1].rstrip(")").split(",")[:3]]
        return sum(numbers) / 3

    def picture(self, name):
        self.browser.save_screenshot(os.path.join(self.folder, f"{name}.png"))


def nothing_sticks_out(page):
    width = page.script("return [document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1], f"the page is {width[0]} wide in a window of {width[1]}"
    out = page.script("""
        return [...document.querySelectorAll("body *")].filter((element) => {
            const box = element.getBoundingClientRect();
            return box.width > 0 && (box.right > innerWidth + 1 || box.left < -1) && !element.closest("pre");
        }).map((element) => element.outerHTML.slice(0, 80));""")
    assert not out, out


def contrasts(page):
    """The least contrast of any text with what it stands on, as WCAG counts it."""
    return page.script("""
        const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
        const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
        const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
        const ground = (element) => {
            for (; element; element = element.parentElement) {
                const colour = numbers(getComputedStyle(element).backgroundColor);
                if (colour.length === 3 || colour[3] > 0) return colour;
            }
        };
        let least = [99, ""];
        for (const element of document.querySelectorAll("body *")) {
            const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
            if (!own || !element.checkVisibility() || element.disabled) continue;
            const [a, b] = [luminance(numbers(getComputedStyle(element).color)), luminance(ground(element))];
            const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            if (ratio < least[0]) least = [ratio, element.outerHTML.slice(0, 80)];
        }
        return least;""")


def sends_and_streams(page):
    page.open()
    assert page.all(".empty") and not page.texts("user")
    page.picture("empty")
    page.slowly(6000)
    page.say("Tell me a story.")
    page.until(lambda: any(page.texts("assistant")), "some text is shown")
    assert page.is_answering() and not page.id("send").is_displayed()
    first = page.texts("assistant")[-1]
    page.until(lambda: len(page.texts("assistant")[-1]) > len(first), "the text grows")
    assert page.is_answering(), "the text was shown before it was whole"
    assert page.texts("assistant")[-1].startswith(first)
    page.picture("answering")
    page.slowly(-1)
    page.until(lambda: not page.is_answering(), "the answer ends")
    assert page.texts("user") == ["Tell me a story."] and len(page.texts("assistant")) == 1
    body = page.body()
    assert body["messages"] == [{"role": "user", "content": "Tell me a story."}] and body["stream"] is True, body
    assert "tok/s" in page.id("rate").text and page.id("send").is_displayed()
    note = page.notes()[-1]
    assert "first token" in note and "seed" in note, note
    page.picture("answered")


def gauge(page):
    used = int(page.id("gauge").get_attribute("aria-valuenow"))
    most = int(page.id("gauge").get_attribute("aria-valuemax"))
    assert 0 < used <= most and page.id("used").text == f"{used} of {most} tokens", page.id("used").text
    share = page.script("const bar = document.querySelector('#gauge i'); return bar.offsetWidth / bar.parentElement.clientWidth")
    assert abs(share - used / most) < 0.02, (share, used, most)


def goes_on(page):
    page.slowly(6000)
    page.say("And then?")
    page.until(lambda: len(page.texts("assistant")) == 2 and page.texts("assistant")[-1], "some text is shown")
    # Whoever reads what stands above is left there.
    page.script("document.querySelector('main').scrollTop = 0")
    page.slowly(-1)
    page.until(lambda: not page.is_answering(), "the answer ends")
    assert page.script("const main = document.querySelector('main'); return [main.scrollTop, main.scrollHeight > main.clientHeight]") == [0, True]
    body = page.body()
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"], body
    assert set(body["messages"][1]) == {"role", "content"}


def stops(page):
    for stop in (lambda: page.id("stop").click(), lambda: page.id("input").send_keys(Keys.ESCAPE)):
        count = len(page.texts("assistant"))
        page.slowly(3000)
        page.say("A long one.")
        page.until(lambda: len(page.texts("assistant")) > count and page.texts("assistant")[-1], "some text is shown")
        stop()
        page.until(lambda: not page.is_answering(), "it stops")
        page.slowly(-1)
        stopped = page.texts("assistant")[-1]
        time.sleep(0.2)
        assert page.texts("assistant")[-1] == stopped, "text came after the stop"
        assert page.notes()[-1] == "stopped"
    page.bodies()
    page.answer_to("Once more.")
    assert page.body()["messages"][-2]["content"] == stopped, "what was stopped is what the model sees"
    # To begin anew stops, too.
    page.slowly(3000)
    page.say("A long one.")
    page.until(lambda: page.texts("user")[-1] == "A long one." and page.texts("assistant")[-1], "some text is shown")
    page.id("new").click()
    page.until(lambda: not page.is_answering(), "it stops")
    page.slowly(-1)
    assert page.all(".empty") and page.id("used").text == "0 of 2048 tokens"
    page.answer_to("Tell me a story.")
    page.bodies()


def button(page, message, name):
    # An answer that has just ended may be painted once more.
    for attempt in range(5):
        try:
            element = page.all(".message")[message]
            (found,) = [found for found in element.find_elements(By.TAG_NAME, "button") if found.text == name]
            return found.click()
        except StaleElementReferenceException:
            assert attempt < 4


def edits(page):
    button(page, 0, "Edit")
    assert page.id("input").get_attribute("value") == "Tell me a story." and not page.all(".message")
    assert page.script("return document.activeElement.id") == "input"
    page.id("input").clear()
    page.answer_to("Tell me of a fox.")
    assert page.body()["messages"] == [{"role": "user", "content": "Tell me of a fox."}]


def answers_again(page):
    page.id("settings-toggle").click()
    page.setting("s-seed", "7")
    button(page, 1, "Again")
    page.until(lambda: not page.is_answering(), "the answer is whole")
    seventh = page.texts("assistant")
    assert len(seventh) == 1 and "seed 7" in page.notes()[-1]
    button(page, 1, "Again")
    page.until(lambda: not page.is_answering(), "the answer is whole")
    assert page.texts("assistant") == seventh, "the same seed says the same"
    page.setting("s-seed", "8")
    button(page, 1, "Again")
    page.until(lambda: not page.is_answering(), "the answer is whole")
    assert page.texts("assistant") != seventh
    assert [body["seed"] for body in page.bodies()] == [7, 7, 8]


def settings(page):
    assert page.id("settings").is_displayed()
    assert page.id("s-temperature").get_attribute("placeholder") == "0.7", "what the server does is shown"
    page.setting("system", "Be brief.")
    page.setting("s-temperature", "0")
    page.setting("s-max_tokens", "12")
    page.picture("settings")
    page.answer_to("Where is the moon?")
    body = page.body()
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}, body
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (0, 12, 8), body
    assert "cut at the limit" in page.notes()[-1]
    # What is emptied is not sent.
    for name in ("system", "s-temperature", "s-max_tokens", "s-seed"):
        page.setting(name, "")
    page.answer_to("And the sun?")
    body = page.body()
    assert body["messages"][0]["role"] == "user" and not {"temperature", "max_tokens", "seed"} & set(body), body
    # What the server refuses is said, and no part of the conversation.
    page.setting("s-top_p", "7")
    page.say("This fails.")
    page.until(lambda: page.all(".error"), "the refusal is shown")
    assert "top_p" in page.all(".error")[-1].text, page.all(".error")[-1].text
    page.picture("refused")
    page.setting("s-top_p", "")
    page.bodies()
    page.answer_to("This does not.")
    messages = page.body()["messages"]
    roles = [message["role"] for message in messages]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"], roles
    assert "This fails." not in [message["content"] for message in messages]
    page.id("settings-toggle").click()


def keyboard(page):
    page.press("n")
    assert not page.all(".message") and page.script("return document.activeElement.id") == "input"
    # A line of its own, and none sent.
    page.id("input").send_keys("one", Keys.SHIFT, Keys.ENTER, Keys.SHIFT, "two")
    assert page.id("input").get_attribute("value") == "one\ntwo" and not page.texts("user")
    page.id("input").send_keys(Keys.ENTER)
    page.until(lambda: page.texts("assistant") and not page.is_answering(), "the answer is whole")
    assert page.texts("user") == ["one\ntwo"]
    page.press("r")
    page.until(lambda: not page.is_answering(), "the answer is whole")
    assert len(page.texts("assistant")) == 1 and len(page.bodies()) == 2
    page.id("input").send_keys(Keys.ARROW_UP)
    assert page.id("input").get_attribute("value") == "one\ntwo" and not page.all(".message")
    page.id("input").clear()
    page.press("s")
    assert page.id("settings").is_displayed() and page.id("settings-toggle").get_attribute("aria-expanded") == "true"
    page.id("input").send_keys(Keys.ESCAPE)
    assert not page.id("settings").is_displayed()
    # Everything is reached by the tabulator, in order, and shows that it has the focus.
    reached = []
    page.script("document.activeElement.blur()")
    for _ in range(12):
        webdriver.ActionChains(page.browser).send_keys(Keys.TAB).perform()
        reached.append(page.script("return document.activeElement.id"))
        if reached[-1]:
            assert page.script("return getComputedStyle(document.activeElement).outlineStyle") == "solid", reached
    assert reached[reached.index("new") :][:5] == ["new", "theme", "settings-toggle", "input", "send"], reached


def dark_and_light(page):
    page.answer_to("Tell me of the `moon`.")
    for scheme, is_dark in (("dark", True), ("light", False)):
        page.prefers(scheme)
        assert (page.ground() < 64) == is_dark, "the page is as the system is"
        page.press("t")
        assert (page.ground() < 64) != is_dark, "the button turns it"
        page.press("t")
        assert (page.ground() < 64) == is_dark
        page.picture(scheme)
        page.press("s")
        page.picture(f"settings-{scheme}")
        ratio, where = contrasts(page)
        assert ratio >= 4.5, f"a contrast of {ratio:.2f} in {scheme}: {where}"
        page.press("s")


def a_phone(page):
    page.size(390, 844, mobile=True)
    used = page.id("used").text
    page.browser.refresh()
    page.until(lambda: "hotmetal-builtin" in page.id("facts").text, "the model's name is shown")
    assert page.texts("assistant"), "a reload keeps the conversation"
    assert page.id("used").text == used != "0 of 2048 tokens", "and how much of the context it takes"
    page.script("state.messages.push({role: 'user', content: arguments[0]}); show()", "word" * 200 + "\n```\n" + "code " * 80 + "\n```")
    nothing_sticks_out(page)
    page.picture("phone")
    page.id("settings-toggle").click()
    nothing_sticks_out(page)
    page.picture("phone-settings")
    page.id("settings-toggle").click()
    small = page.script("""
        return [...document.querySelectorAll("header button, form button")].filter((e) => e.checkVisibility())
            .filter((e) => e.getBoundingClientRect().height < 32).map((e) => e.outerHTML)""")
    assert not small, small
    page.size(320, 600, mobile=True)
    nothing_sticks_out(page)
    page.picture("phone-narrow")


def text_is_text(page):
    page.size(1280, 800)
    page.press("n")
    page.script("state.messages.push({role: 'assistant', content: arguments[0]}); show()", "<img src=x onerror=boom()> <b>bold</b>")
    assert page.texts("assistant") == ["<img src=x onerror=boom()> <b>bold</b>"] and not page.all(".text img, .text b")


def one_model_is_no_choice(page):
    assert not page.id("choice").is_displayed()


def a_choice_of_models(page):
    page.press("s")
    page.until(lambda: page.id("choice").is_displayed(), "the choice is shown")
    assert [option.text for option in page.all("#models option")] == ["hotmetal-builtin", "other"]
    page.bodies()
    page.answer_to("Who are you?")
    assert page.body()["model"] == "hotmetal-builtin"
    page.id("models").send_keys("other")
    page.until(lambda: "other" in page.id("facts").text, "the other's facts are shown")
    page.answer_to("And you?")
    assert page.body()["model"] == "other"
    page.picture("models")
    # It is kept.
    page.browser.get(page.address)
    page.until(lambda: "other" in page.id("facts").text, "the other is still chosen")


def nobody_else_is_asked(page):
    page.bodies()
    assert len(page.requests) > 10
    other = [url for url in page.requests if not url.startswith((page.address + "/", "data:"))]
    assert not other, other
    console = [entry for entry in page.browser.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")]
    console = [entry for entry in console if "400 (Bad Request)" not in entry["message"]]
    assert not console, console


def run(page, tests):
    try:
        for test in tests:
            test(page)
            print(f"{test.__name__}: ok")
    except BaseException:
        page.picture("failed")
        raise
    finally:
        page.browser.quit()
        page.profile.cleanup()


def main():
    address, folder = sys.argv[1].rstrip("/"), sys.argv[2]
    os.makedirs(folder, exist_ok=True)
    run(Page(address, folder), (
        sends_and_streams, gauge, goes_on, stops, edits, answers_again, settings, keyboard, dark_and_light, a_phone,
        text_is_text, one_model_is_no_choice, nobody_else_is_asked,
    ))
    for address in sys.argv[3:]:
        page = Page(address.rstrip("/"), folder)
        page.open()
        run(page, (a_choice_of_models,))


main()
