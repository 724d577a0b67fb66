"""The page at `/` of a running `hotmetal serve` of the built-in model, in a real Chromium.

usage: page_test.py http://127.0.0.1:PORT FOLDER [http://127.0.0.1:PORT]
(needs the `selenium` package, chromium and chromedriver; the second server is of two models, `hotmetal-builtin` and
`other`)

Sends, streams, stops, edits in place, regenerates, goes on, changes branches, keeps, finds, renames, deletes, exports
and imports conversations, also in two tabs; attaches files, says a system prompt and sampler settings, reads the gauge
and the progress of a prompt, copies, uses the keys, dark and light, a phone's width, and a reload. Markdown, and HTML
that must not run, come from answers that the test puts in the place of the server's, because the built-in model writes
neither. Looks at every request that the browser makes, all of which go to this server, and at its console, which stays
empty. Saves what it looked like as FOLDER/*.png. Exits with a traceback at the first thing that is wrong.
"""

import json
import os
import pathlib
import re
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
        self.downloads = tempfile.TemporaryDirectory()
        behaviour = {"behavior": "allow", "downloadPath": self.downloads.name}
        self.browser.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)

    def open(self):
        self.browser.get(self.address)
        self.until(self.knows_the_model, "the model's name is shown")

    def knows_the_model(self):
        return "hotmetal-builtin" in (self.id("facts").get_attribute("title") or "")

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
        return self.script("return [...document.querySelectorAll('.message > .acts')].map((e) => e.querySelector('.note')?.textContent)")

    def say(self, text):
        self.id("input").send_keys(text, Keys.ENTER)

    def answer_to(self, text):
        """Says it, and returns the whole answer."""
        self.say(text)
        self.until(lambda: self.texts("user")[-1:] == [text] and not self.is_answering(), "the answer is whole")
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

    def stub(self):
        """Puts `piece(delta, more)` and `finish()` in the place of the server's answers."""
        self.script("""
            window.serverFetch ??= window.fetch;
            window.bodies = [];
            window.fetch = (url, options) => {
                if (!String(url).endsWith("v1/chat/completions")) return serverFetch(url, options);
                bodies.push(JSON.parse(options.body));
                const encoder = new TextEncoder();
                const start = (controller) => {
                    const event = (value) => controller.enqueue(encoder.encode(`data: ${value}\\n\\n`));
                    window.piece = (delta, more) => event(JSON.stringify({ choices: [{ delta }], ...more }));
                    window.finish = () => { event("[DONE]"); controller.close(); };
                    window.breakOff = () => controller.close();
                    options.signal.addEventListener("abort", () => controller.error(new DOMException("", "AbortError")));
                };
                return Promise.resolve(new Response(new ReadableStream({ start })));
            };""")

    def unstub(self):
        self.script("window.fetch = window.serverFetch")

    def piece(self, text, **more):
        self.script("piece(arguments[0], arguments[1])", {"content": text} if isinstance(text, str) else text, more)

    def finish(self):
        self.script("finish()")
        self.until(lambda: not self.is_answering(), "the answer is whole")

    def said(self, question, answer):
        """A question, and this answer to it, in one piece."""
        self.stub()
        self.say(question)
        self.until(lambda: self.script("return bodies.length") == 1, "the page asks")
        self.piece(answer)
        self.finish()
        self.unstub()

    def titles(self):
        return self.script("return [...document.querySelectorAll('#conversations .open')].map((e) => e.textContent)")

    def row(self, title, act):
        """Presses a button of a conversation in the list."""
        if act == "open":
            xpath = f"//nav//button[contains(@class, 'open') and text()='{title}']"
        else:
            xpath = f"//nav//button[@aria-label='{act} “{title}”']"
        self.script("arguments[0].click()", self.browser.find_element(By.XPATH, xpath))

    def notice(self):
        return self.id("notice").text if self.id("notice").is_displayed() else ""

    def file(self, name, contents):
        path = pathlib.Path(self.downloads.name, name)
        path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
        return str(path)

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
    seen = page.body()["messages"][-2]["content"]
    assert "".join(seen.split()) == "".join(stopped.split()), "what was stopped is what the model sees"
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
    first = page.texts("assistant")
    page.id("input").send_keys("a draft")
    button(page, 0, "Edit")
    area = page.all(".editor textarea")[0]
    assert area.get_attribute("value") == "Tell me a story." and page.texts("assistant") == first, "nothing goes away"
    assert page.script("return document.activeElement.closest('.editor') !== null")
    area.send_keys(" Or none.")
    page.picture("editing")
    area.send_keys(Keys.ESCAPE)
    assert not page.all(".editor") and page.texts("user") == ["Tell me a story."] and page.texts("assistant") == first
    button(page, 0, "Edit")
    button(page, 0, "Cancel")
    assert not page.all(".editor") and page.id("input").get_attribute("value") == "a draft", "the draft stays"
    page.id("input").clear()
    # ↑ in an empty box does the same.
    page.id("input").send_keys(Keys.ARROW_UP)
    area = page.all(".editor textarea")[0]
    area.clear()
    area.send_keys("Tell me of a fox.", Keys.ENTER)
    page.until(lambda: page.texts("user") == ["Tell me of a fox."] and not page.is_answering(), "the answer is whole")
    assert page.body()["messages"] == [{"role": "user", "content": "Tell me of a fox."}]
    # The message as it was, and its answer, are a branch.
    second = page.texts("assistant")
    assert page.all(".message.user .version")[0].text == "2/2"
    button(page, 0, "‹")
    assert page.texts("user") == ["Tell me a story."] and page.texts("assistant") == first
    button(page, 0, "›")
    assert page.texts("user") == ["Tell me of a fox."] and page.texts("assistant") == second


def regenerates(page):
    page.id("settings-toggle").click()
    before = page.texts("assistant")
    page.setting("s-seed", "7")
    button(page, 1, "Regenerate")
    page.until(lambda: not page.is_answering(), "the answer is whole")
    seventh = page.texts("assistant")
    assert len(seventh) == 1 and "seed 7" in page.notes()[-1]
    button(page, 1, "Regenerate")
    page.until(lambda: not page.is_answering(), "the answer is whole")
    assert page.texts("assistant") == seventh, "the same seed says the same"
    page.setting("s-seed", "8")
    button(page, 1, "Regenerate")
    page.until(lambda: not page.is_answering(), "the answer is whole")
    eighth = page.texts("assistant")
    assert eighth != seventh
    assert [body["seed"] for body in page.bodies()] == [7, 7, 8]
    # Every answer is still there.
    assert page.all(".message.assistant .version")[0].text == "4/4"
    page.picture("branches")
    for _ in range(3):
        button(page, 1, "‹")
    assert page.texts("assistant") == before and page.all(".message.assistant .version")[0].text == "1/4"
    page.browser.refresh()
    page.until(lambda: page.texts("assistant") == before, "a reload keeps the branch")
    page.until(page.knows_the_model, "the model's name is shown")
    for _ in range(3):
        button(page, 1, "›")
    assert page.texts("assistant") == eighth


def goes_on_with_an_answer(page):
    page.id("settings-toggle").click()
    page.setting("s-max_tokens", "8")
    page.press("n")
    short = page.answer_to("Tell me a long story.")
    assert "Max tokens" in page.notes()[-1], page.notes()
    page.bodies()
    button(page, 1, "Continue")
    page.until(lambda: page.texts("assistant")[-1] != short and not page.is_answering(), "it goes on")
    assert page.texts("assistant")[-1].startswith(short) and len(page.texts("assistant")) == 1
    body = page.body()
    assert body["continue_final_message"] is True and body["messages"][-1]["role"] == "assistant", body
    assert body["messages"][-1]["content"] == short
    page.setting("s-max_tokens", "")
    page.id("settings-toggle").click()


def settings(page):
    page.id("settings-toggle").click()
    assert page.id("s-temperature").get_attribute("placeholder") == "0.7", "what the server does is shown"
    page.setting("system", "Be brief.")
    page.setting("s-temperature", "0")
    page.setting("s-max_tokens", "12")
    page.picture("settings")
    page.answer_to("Where is the moon?")
    body = page.body()
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}, body
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (0, 12, 8), body
    assert "ended at Max tokens" in page.notes()[-1], page.notes()
    # What is emptied is not sent.
    for name in ("system", "s-temperature", "s-max_tokens", "s-seed"):
        page.setting(name, "")
    page.answer_to("And the sun?")
    body = page.body()
    assert body["messages"][0]["role"] == "user" and not {"temperature", "max_tokens", "seed"} & set(body), body
    # What the server refuses is said, and no part of the conversation.
    page.setting("s-top_p", "7")
    page.say("This fails.")
    page.until(lambda: page.all(".message .error:not([hidden])"), "the refusal is shown")
    error = page.script("return [...document.querySelectorAll('.message .error')].at(-1).textContent")
    assert "top_p" in error and "Change “Top p” in Settings" in error, error
    page.picture("refused")
    page.setting("s-top_p", "")
    page.bodies()
    page.answer_to("This does not.")
    messages = page.body()["messages"]
    roles = [message["role"] for message in messages]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"], roles
    assert "This fails." not in [message["content"] for message in messages]
    page.id("settings-toggle").click()


def system_prompts(page):
    """Each conversation has its own, and new ones have what was chosen for them."""
    page.press("n")
    page.id("settings-toggle").click()
    page.setting("system", "Be kind.")
    page.answer_to("The first of two.")
    page.press("n")
    assert page.id("system").get_attribute("value") == ""
    page.setting("system", "Be short.")
    page.id("system-default").click()
    page.answer_to("The second of two.")
    assert [body["messages"][0]["content"] for body in page.bodies()[-2:]] == ["Be kind.", "Be short."]
    page.row("The first of two.", "open")
    page.until(lambda: page.texts("user") == ["The first of two."], "it is opened")
    assert page.id("system").get_attribute("value") == "Be kind."
    page.press("n")
    assert page.id("system").get_attribute("value") == "Be short."
    page.setting("system", "")
    page.id("system-default").click()
    page.id("settings-toggle").click()


def keyboard(page):
    page.press("n")
    page.bodies()
    assert not page.all(".message") and page.script("return document.activeElement.id") == "input"
    # A line of its own, and none sent.
    page.id("input").send_keys("one", Keys.SHIFT, Keys.ENTER, Keys.SHIFT, "two")
    assert page.id("input").get_attribute("value") == "one\ntwo" and not page.texts("user")
    page.id("input").send_keys(Keys.ENTER)
    page.until(lambda: page.texts("assistant") and not page.is_answering(), "the answer is whole")
    assert page.texts("user") == ["one\ntwo"]
    page.press("r")
    page.until(lambda: page.all(".version") and not page.is_answering(), "the answer is whole")
    assert len(page.texts("assistant")) == 1 and len(page.bodies()) == 2
    page.press("s")
    assert page.id("settings").is_displayed() and page.id("settings-toggle").get_attribute("aria-expanded") == "true"
    page.id("input").send_keys(Keys.ESCAPE)
    assert not page.id("settings").is_displayed()
    page.press("c")
    assert not page.id("list").is_displayed() and page.id("list-toggle").get_attribute("aria-expanded") == "false"
    # Everything is reached by the tabulator, in order, and shows that it has the focus.
    reached = []
    page.script("document.activeElement.blur(); getSelection().removeAllRanges()")
    for _ in range(24):
        webdriver.ActionChains(page.browser).send_keys(Keys.TAB).perform()
        reached.append(page.script("return document.activeElement.id || document.activeElement.textContent"))
        if page.script("return document.activeElement !== document.body"):
            assert page.script("return getComputedStyle(document.activeElement).outlineStyle") == "solid", reached
    # A notice of the test before may still be there.
    reached = [name for name in reached if name != "×"]
    at = reached.index("list-toggle")
    # The first version and the last have no other before and after them.
    want = ["list-toggle", "new", "theme", "settings-toggle", "Edit", "Copy", "‹", "Regenerate", "Continue", "Copy"]
    want += ["attach", "input", "send"]
    assert reached[at:][: len(want)] == want, reached
    page.press("c")
    assert page.id("list").is_displayed() and page.script("return document.activeElement.id") == "search"
    page.press("n")


def dark_and_light(page):
    page.said("Show me all that you can.", MARKDOWN)
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
    page.press("n")
    page.answer_to("Tell me a story.")
    page.size(390, 844, mobile=True)
    used = page.id("used").text
    page.browser.refresh()
    page.until(page.knows_the_model, "the model's name is shown")
    assert page.texts("assistant"), "a reload keeps the conversation"
    assert page.id("used").text == used != "0 of 2048 tokens", "and how much of the context it takes"
    nothing_sticks_out(page)
    page.picture("phone")
    page.press("n")
    nothing_sticks_out(page)
    page.picture("phone-empty")
    page.said("word" * 200, MARKDOWN + "\n\n```\n" + "code " * 80 + "\n```\n\n" + "x" * 300)
    nothing_sticks_out(page)
    page.picture("phone-markdown")
    for toggle in ("settings-toggle", "list-toggle"):
        page.id(toggle).click()
        nothing_sticks_out(page)
        page.picture(f"phone-{toggle.removesuffix('-toggle')}")
        page.id(toggle).click()
    small = page.script("""
        return [...document.querySelectorAll("header button, form button")].filter((e) => e.checkVisibility())
            .filter((e) => e.getBoundingClientRect().height < 32).map((e) => e.outerHTML)""")
    assert not small, small
    page.size(320, 600, mobile=True)
    nothing_sticks_out(page)
    page.picture("phone-narrow")
    # To open a conversation closes the list, which covers it.
    page.id("list-toggle").click()
    page.row("Tell me a story.", "open")
    page.until(lambda: not page.id("list").is_displayed() and page.texts("user") == ["Tell me a story."], "it is opened")
    page.size(1280, 800)
    page.id("list-toggle").click()


MARKDOWN = """# Merging lists

Two *sorted* lists become **one**, as [Wikipedia](https://en.wikipedia.org/wiki/Merge_algorithm) says. Use `merge` &amp;
be ~~slow~~ fast.

## Steps

1. Look at both heads.
2. Take the smaller one:
   - from the left,
   - from the right.
3. Go on.

- [x] written
- [ ] tested

> A quote, which has
> two lines.

```python
def merge(left, right):
    \"\"\"Merges two sorted lists.\"\"\"
    out = []
    while left and right:  # the smaller head first
        out.append((left if left[0] < right[0] else right).pop(0))
    return out + left + right
```

| Algorithm | Time | Stable |
|:----------|-----:|:------:|
| merge     | $O(n)$ | yes |
| quick     | \\(O(n \\log n)\\) | no<br>(mostly) |

The sum is

$$\\sum_{k=1}^{n} k = \\frac{n(n+1)}{2}$$

and it costs $5 or $10. What cannot be read stays: $\\frac{a$.

---

That is all."""


def markdown(page):
    page.press("n")
    page.said("Show me **all** that you can.", MARKDOWN)
    assert page.texts("user") == ["Show me **all** that you can."], "what somebody writes is shown as it is"
    count = lambda selector: len(page.all(f".assistant > .text {selector}"))
    found = {selector: count(selector) for selector in (
        "h2", "h3", "em", "strong", "del", "p > code", "ol > li", "ol ul > li", "li.task input", "blockquote p", "table th",
        "table td", "td br", "math", ".maths math[display=block]", "mfrac", "hr", ".code .hl-keyword",
    )}
    keywords = found.pop(".code .hl-keyword")
    assert keywords > 3, keywords
    assert found == {
        "h2": 1, "h3": 1, "em": 1, "strong": 1, "del": 1, "p > code": 2, "ol > li": 3, "ol ul > li": 2, "li.task input": 2,
        "blockquote p": 1, "table th": 3, "table td": 6, "td br": 1, "math": 3, ".maths math[display=block]": 1, "mfrac": 1,
        "hr": 1,
    }, found
    (link,) = page.all(".assistant > .text a")
    assert link.get_attribute("href") == "https://en.wikipedia.org/wiki/Merge_algorithm"
    assert (link.get_attribute("target"), link.get_attribute("rel")) == ("_blank", "noopener noreferrer")
    text = page.texts("assistant")[0]
    assert "Use merge &be" in text and "it costs $5 or $10" in text and "$\\frac{a$" in text, text
    page.script("document.querySelector('main').scrollTop = 0")
    page.picture("markdown-top")
    page.script("document.querySelector('main').scrollTop = 520")
    page.picture("markdown-middle")
    page.script("document.querySelector('main').scrollTop = 1e6")
    page.picture("markdown-end")
    # However it is cut, the end is the same, and no element of a whole block is made anew.
    want = page.script("return document.querySelector('.assistant > .text').innerHTML")
    page.press("n")
    page.stub()
    page.say("Once more.")
    page.until(lambda: page.script("return bodies.length") == 1, "the page asks")
    for piece in re.findall(r"[\s\S]{1,23}", MARKDOWN):
        page.piece(piece)
        page.script("return new Promise(requestAnimationFrame)")
    page.finish()
    assert page.script("return document.querySelector('.assistant > .text').innerHTML") == want
    page.unstub()


def a_selection_survives(page):
    page.press("n")
    page.stub()
    page.say("Write two paragraphs.")
    page.until(lambda: page.script("return bodies.length") == 1, "the page asks")
    page.piece("The first paragraph is whole.\n\n```py\nx = 1\n```\n\nThe second one")
    page.until(lambda: len(page.all(".assistant > .text > p")) == 2, "both are shown")
    for paragraph, chosen in ((0, "first paragraph"), (1, "second")):
        page.script("""
            const text = document.querySelectorAll(".assistant > .text > p")[arguments[0]].firstChild;
            const at = text.data.indexOf(arguments[1]);
            getSelection().setBaseAndExtent(text, at, text, at + arguments[1].length);
            window.kept = [...document.querySelectorAll(".assistant > .text > *")];""", paragraph, chosen)
        before = page.texts("assistant")[-1]
        page.piece(" grows and grows,")
        page.until(lambda: page.texts("assistant")[-1] != before, "it grows")
        assert page.script("return getSelection().toString()") == chosen
        assert page.script("return kept.every((element) => element.isConnected)"), "elements stay"
    page.piece(" and ends.\n\n- a list\n- of two\n")
    page.finish()
    assert page.script("return getSelection().toString()") == "second", "also when the answer ends"
    assert page.script("return kept.every((element) => element.isConnected)")
    page.script("getSelection().removeAllRanges(); document.activeElement.blur()")
    page.unstub()


HOSTILE = """<img src=x onerror="window.ran='img'"> <b>bold</b> <script>window.ran='script'</script>

<script>window.ran='block'</script>

<iframe srcdoc="<script>parent.ran='frame'</script>"></iframe><svg onload="window.ran='svg'"></svg>

<a href="javascript:window.ran='a'">x</a> [one](javascript:window.ran='link') [two](JaVaScRiPt:window.ran='case')
[three](data:text/html,<script>window.ran='data'</script>) <javascript:window.ran='auto'> [four](&#106;avascript:window.ran=1)
![image](x" onerror="window.ran='alt') ![image](https://example.com/a.png "a") [five](/v1/models) [six][ref]

[ref]: javascript:window.ran='ref'

| <img src=x onerror="window.ran='cell'"> | b |
|---|---|
| `<img src=x onerror="window.ran='code'">` | <style>body{display:none}</style> |

```html"onclick="window.ran='language'
<img src=x onerror="window.ran='fence'"><script>window.ran='fence'</script>
```

$\\href{javascript:window.ran='maths'}{x} \\class{a" onclick="x}{y} \\text{<img src=x onerror=window.ran=1>}$

&lt;img src=x onerror="window.ran='entity'"&gt;
"""


def html_never_runs(page):
    page.press("n")
    path = page.file("<img src=x onerror=window.ran=1>.txt", HOSTILE)
    page.id("file").send_keys(path)
    page.until(lambda: page.all("#files li"), "the file is attached")
    page.stub()
    page.say("<img src=x onerror=window.ran='own'> [x](javascript:window.ran='own')")
    page.until(lambda: page.script("return bodies.length") == 1, "the page asks")
    page.piece({"reasoning_content": HOSTILE})
    for piece in re.findall(r"[\s\S]{1,40}", HOSTILE):
        page.piece(piece)
    page.finish()
    # As an error, as well.
    page.say("And an error?")
    page.until(lambda: page.script("return bodies.length") == 2, "the page asks")
    page.script("piece({}, { error: { message: arguments[0] } })", HOSTILE)
    page.until(lambda: not page.is_answering(), "it ends")
    page.unstub()
    for element in page.all("details"):
        page.script("arguments[0].open = true", element)
    page.picture("hostile")
    dangerous = page.script("""
        return [...document.querySelectorAll("body *")].filter((element) =>
            /^(img|iframe|object|embed|svg|style|b|base|meta)$/.test(element.localName) && !element.matches(".message > b")
            || (element.localName === "script" && element.src !== location.origin + "/page/main.js")
            || [...element.attributes].some(({ name }) => name.startsWith("on") || name === "srcdoc" || name === "xlink:href")
            || (element.hasAttribute("href") && element.closest("main") && !/^(https?|mailto):/.test(element.getAttribute("href")))
        ).map((element) => element.outerHTML.slice(0, 200))""")
    assert not dangerous, dangerous
    for element in page.all("main a, main .no-link, main code, main math"):
        page.script("""
            arguments[0].addEventListener("click", (event) => event.preventDefault());
            arguments[0].click();""", element)
    time.sleep(0.2)
    assert page.script("return window.ran ?? null") is None, page.script("return window.ran")
    text = page.texts("assistant")[0]
    for shown in ("<img src=x onerror=\"window.ran='img'\">", "<b>bold</b>", "<script>window.ran='block'</script>", "<iframe srcdoc"):
        assert shown in text, (shown, text)
    assert [link.get_attribute("href") for link in page.all(".assistant > .text a")] == ["https://example.com/a.png"]
    # And the browser itself would refuse a script that made HTML of a text.
    refused = page.script("""
        try { document.createElement("p").innerHTML = "<b>x</b>"; return false; } catch (error) { return error instanceof TypeError; }""")
    assert refused
    page.browser.get_log("browser")


def copies_without_a_secure_context(page):
    page.press("n")
    page.said("Show me code.", "Here:\n\n```py\nprint('copied')\n```\n")
    page.script("Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true })")
    for press, want in (
        (lambda: page.all(".copy-code")[0].click(), "print('copied')"),
        (lambda: button(page, 1, "Copy"), "Here:\n\n```py\nprint('copied')\n```"),
        (lambda: button(page, 0, "Copy"), "Show me code."),
    ):
        press()
        page.until(lambda: "Copied" in page.id("messages").text, "it says so")
        page.id("input").send_keys(Keys.CONTROL, "v")
        page.until(lambda: page.id("input").get_attribute("value"), "it is pasted")
        assert page.id("input").get_attribute("value").strip() == want, page.id("input").get_attribute("value")
        page.id("input").clear()
    page.script("delete navigator.clipboard")


def files(page):
    page.press("n")
    page.bodies()
    page.id("file").send_keys(page.file("notes.txt", "The fox is red.\n```\nfenced\n```\n"))
    page.until(lambda: len(page.all("#files li")) == 1, "it is attached")
    # Dropped, and pasted.
    for event in ("drop", "paste"):
        page.script("""
            const carried = new DataTransfer();
            carried.items.add(new File([`by ${arguments[0]}`], `${arguments[0]}.md`, { type: "text/markdown" }));
            const given = arguments[0] === "drop" ? new DragEvent("drop", { dataTransfer: carried, bubbles: true, cancelable: true })
                : new ClipboardEvent("paste", { clipboardData: carried, bubbles: true, cancelable: true });
            document.getElementById("input").dispatchEvent(given);""", event)
    page.until(lambda: len(page.all("#files li")) == 3, "they are attached")
    # What is no text is refused, with what to do.
    page.id("file").send_keys(page.file("picture.png", b"\x89PNG\r\n\x1a\n\0\0\xff"))
    page.until(lambda: "picture.png is no text in UTF-8. Save it as text" in page.notice(), "it is refused")
    page.id("file").send_keys(page.file("long.txt", "x" * 2_100_000))
    page.until(lambda: "long.txt has 2.1 MB; attach files of at most 2 MB" in page.notice(), "it is refused")
    assert len(page.all("#files li")) == 3
    page.picture("files")
    page.script("arguments[0].click()", page.all("#files li button")[2])
    assert [chip.text.split(" ·")[0] for chip in page.all("#files li")] == ["notes.txt", "drop.md"]
    # A reload keeps what is not sent yet.
    page.id("input").send_keys("What colour is it?")
    page.browser.refresh()
    page.until(page.knows_the_model, "the model's name is shown")
    assert page.id("input").get_attribute("value") == "What colour is it?" and len(page.all("#files li")) == 2
    page.id("input").send_keys(Keys.ENTER)
    page.until(lambda: page.texts("assistant") and not page.is_answering(), "the answer is whole")
    (message,) = page.body()["messages"]
    assert message["content"] == (
        "What colour is it?\n\nFile `notes.txt`:\n\n````\nThe fox is red.\n```\nfenced\n```\n````\n\n"
        "File `drop.md`:\n\n```\nby drop\n```"
    ), message
    assert page.texts("user") == ["What colour is it?"] and len(page.all(".message .file")) == 2 and not page.all("#files li")
    page.picture("files-sent")


def progress(page):
    page.press("n")
    page.bodies()
    page.answer_to("Tell me a story.")
    assert page.body()["return_progress"] is True
    page.stub()
    page.say("Read a long prompt.")
    page.until(lambda: page.script("return bodies.length") == 1, "the page asks")
    page.piece({}, prompt_progress={"total": 1200, "cache": 0, "processed": 0, "time_ms": 0})
    page.until(lambda: "Reading 1200 tokens · 1 s" in page.id("progress-text").text, "it says how long")
    page.picture("reading")
    page.piece({}, prompt_progress={"total": 1200, "cache": 0, "processed": 600, "time_ms": 900})
    page.until(lambda: page.script("return document.getElementById('reading').position") == 0.5, "half of it")
    page.piece({}, prompt_progress={"total": 1200, "cache": 0, "processed": 1200, "time_ms": 1500})
    page.until(lambda: not page.id("progress").is_displayed(), "it is read")
    # A thought is shown, and closes when the answer begins.
    page.piece({"reasoning_content": "Let me think."})
    page.until(lambda: page.all("details.thought[open]"), "the thought is shown")
    page.piece("So it is.")
    page.until(lambda: page.all("details.thought:not([open])"), "it closes")
    page.finish()
    page.unstub()


def errors(page):
    last = lambda: page.script("return [...document.querySelectorAll('.message .error')].at(-1)?.textContent ?? ''")
    page.press("n")
    # More than the context holds.
    page.id("file").send_keys(page.file("book.txt", "a fox and a moon " * 3000))
    page.until(lambda: page.all("#files li"), "it is attached")
    page.say("Sum it up.")
    page.until(lambda: "longer than the model's context: begin a new one" in last(), "it is refused")
    page.press("n")
    page.stub()
    page.script("window.fetch = () => Promise.reject(new TypeError('Failed to fetch'))")
    page.say("Are you there?")
    page.until(lambda: last() == "The server cannot be reached. Look whether it still runs, then press Regenerate.", last())
    page.stub()
    button(page, 1, "Regenerate")
    page.until(lambda: page.script("return bodies.length") == 1, "the page asks")
    page.piece("Half an")
    page.script("breakOff()")
    page.until(lambda: "ended before the answer did. Press Continue" in last(), "it is said")
    assert page.texts("assistant") == ["Half an"], "what came stays"
    button(page, 1, "Continue")
    page.until(lambda: page.script("return bodies.length") == 2, "the page asks")
    page.piece(" answer.")
    page.finish()
    assert page.texts("assistant") == ["Half an answer."] and last() == ""
    page.unstub()
    page.browser.get_log("browser")


def conversations(page):
    while page.titles():
        count = len(page.titles())
        page.script("document.querySelector('#conversations li button:last-child').click()")
        page.until(lambda: len(page.titles()) < count, "it is deleted")
    page.press("n")
    page.said("Tell me of foxes.", "Foxes are **red**.")
    page.press("n")
    page.said("Tell me of whales.", "Whales are large.")
    page.press("n")
    page.said("Tell me of <b>owls</b>.", "Owls fly at night.")
    page.until(lambda: page.titles() == ["Tell me of <b>owls</b>.", "Tell me of whales.", "Tell me of foxes."], "the list")
    page.picture("list")
    # By title, and by what was answered.
    for words, found in (("WHALE", ["Tell me of whales."]), ("red are", ["Tell me of foxes."]), ("bear", [])):
        page.id("search").clear()
        page.id("search").send_keys(words)
        page.until(lambda: page.titles() == found, f"{words}: {page.titles()}")
    page.picture("searched")
    page.id("search").send_keys(Keys.BACKSPACE * 4)
    page.until(lambda: len(page.titles()) == 3, "all are shown")
    # Rename, and change one's mind.
    for keys, title in ((Keys.ESCAPE, "Tell me of whales."), (Keys.ENTER, "Whales")):
        page.row("Tell me of whales.", "Rename")
        field = page.all("#conversations input")[0]
        # Its text is selected; to clear it would take the focus from it, which keeps the title.
        field.send_keys("Whales", keys)
        page.until(lambda: title in page.titles(), "the title")
    page.row("Whales", "open")
    page.until(lambda: page.texts("assistant") == ["Whales are large."], "it is opened")
    assert page.all("#conversations [aria-current=true]")[0].text == "Whales"
    page.browser.refresh()
    page.until(lambda: page.texts("assistant") == ["Whales are large."], "a reload opens the same one")
    page.until(page.knows_the_model, "the model's name is shown")
    # Export, delete, undo, delete, import.
    page.id("export").click()
    folder = pathlib.Path(page.downloads.name)
    page.until(lambda: list(folder.glob("hotmetal-conversations-*.json")), "the file is there")
    (exported,) = folder.glob("hotmetal-conversations-*.json")
    page.until(lambda: exported.read_text().endswith("}"), "it is whole")
    kept = json.loads(exported.read_text())
    assert sorted(one["title"] for one in kept["conversations"]) == ["Tell me of <b>owls</b>.", "Tell me of foxes.", "Whales"]
    page.row("Whales", "Delete")
    page.until(lambda: "Whales" not in page.titles() and page.all(".empty"), "it is deleted")
    page.picture("deleted")
    page.all("#notice button")[0].click()
    page.until(lambda: "Whales" in page.titles(), "it is back")
    page.row("Whales", "Delete")
    page.until(lambda: "Whales" not in page.titles(), "it is deleted")
    for text, notice in (
        (exported.read_text(), "3 conversations were read, with 2 messages that were not here."),
        (exported.read_text(), "All of these conversations are here already."),
        ("no json", "cannot be imported: it is no JSON. Choose a file that this page has exported."),
        ('{"format": "other"}', "cannot be imported: it has no conversations of this page."),
    ):
        page.id("import-file").send_keys(page.file("import.json", text))
        page.until(lambda: notice in page.notice(), notice)
    page.row("Whales", "open")
    page.until(lambda: page.texts("assistant") == ["Whales are large."], "it is opened")


def two_tabs(page):
    """One conversation in two tabs: both write, and nothing is lost."""
    first = page.browser.current_window_handle
    address = page.browser.current_url
    page.browser.switch_to.new_window("tab")
    page.browser.get(address)
    second = page.browser.current_window_handle
    page.until(lambda: page.texts("assistant") == ["Whales are large."], "it is opened there, too")
    page.until(page.knows_the_model, "the model's name is shown")
    # Both answer at once.
    for window in (first, second):
        page.browser.switch_to.window(window)
        page.stub()
        button(page, 1, "Regenerate")
        page.until(lambda: page.script("return bodies.length") == 1, "the page asks")
        page.piece("Half ")
    for window, answer in ((second, "two."), (first, "one.")):
        page.browser.switch_to.window(window)
        page.piece(answer)
        page.finish()
        page.unstub()
    assert page.texts("assistant") == ["Half one."]
    page.until(lambda: [version.text for version in page.all(".version")] == ["2/3"], "the other tab's branch is known")
    button(page, 1, "›")
    assert page.texts("assistant") == ["Half two."]
    page.picture("two-tabs")
    # What the other tab goes on with from here is shown here.
    page.browser.switch_to.window(second)
    page.said("From the second tab.", "Two and a half.")
    page.browser.switch_to.window(first)
    page.until(lambda: page.texts("assistant") == ["Half two.", "Two and a half."], "it is shown")
    # A title from one tab and an answer from the other.
    page.row("Whales", "Rename")
    field = page.all("#conversations input")[0]
    field.send_keys("Two tabs", Keys.ENTER)
    page.browser.switch_to.window(second)
    page.until(lambda: "Two tabs" in page.titles(), "the other tab shows the title")
    page.said("And a third.", "Three.")
    page.until(lambda: page.titles()[0] == "Two tabs", "the title stays")
    # Another conversation is not touched.
    page.press("n")
    page.said("A new one.", "New.")
    page.browser.switch_to.window(first)
    page.until(lambda: "A new one." in page.titles(), "it is in the list of the other tab")
    assert page.texts("user")[0] == "Tell me of whales."
    page.browser.refresh()
    page.until(lambda: len(page.texts("user")) > 1, "it is opened")
    stored = page.script("""
        const request = indexedDB.open("hotmetal");
        return new Promise((resolve) => { request.onsuccess = () => {
            const all = request.result.transaction("messages").objectStore("messages").getAll();
            all.onsuccess = () => { request.result.close(); resolve(all.result.map((message) => message.content)); };
        }; })""")
    for text in ("Half one.", "Half two.", "Three.", "New.", "Whales are large."):
        assert text in stored, (text, stored)
    page.browser.switch_to.window(second)
    page.browser.close()
    page.browser.switch_to.window(first)
    page.until(page.knows_the_model, "the model's name is shown")


def the_first_version_is_migrated(page):
    page.press("n")
    page.script("""localStorage.removeItem("hotmetal-preferences"); localStorage.setItem("hotmetal", JSON.stringify({
        messages: [{ role: "user", content: "Of long ago?" }, { role: "assistant", content: "Yes.", reasoning: "" }],
        system: "Be old.", settings: { temperature: 0.5 }, theme: "dark", used: 21, model: "",
    }))""")
    page.browser.refresh()
    page.until(lambda: "Of long ago?" in page.titles(), "it is in the list")
    page.row("Of long ago?", "open")
    page.until(lambda: page.texts("assistant") == ["Yes."], "it is opened")
    page.until(lambda: page.id("used").text == "21 of 2048 tokens", "and how much of the context it takes")
    assert page.id("system").get_attribute("value") == "Be old." and page.id("s-temperature").get_attribute("value") == "0.5"
    assert page.ground() < 64 and page.script("return localStorage.getItem('hotmetal')") is None
    page.press("s")
    page.setting("s-temperature", "")
    page.press("s")
    page.press("t")


def suggestions(page):
    page.press("n")
    page.bodies()
    chosen = page.all(".suggestions button")[0]
    text = chosen.text
    chosen.click()
    page.until(lambda: page.texts("user") == [text] and page.texts("assistant") and not page.is_answering(), "the answer")
    assert page.body()["messages"] == [{"role": "user", "content": text}]


def one_model_is_no_choice(page):
    assert not page.id("choice").is_displayed()


def a_choice_of_models(page):
    page.until(lambda: page.id("choice").is_displayed(), "the choice is shown")
    assert [option.text for option in page.all("#models option")] == ["hotmetal-builtin", "other"]
    page.bodies()
    page.answer_to("Who are you?")
    assert page.body()["model"] == "hotmetal-builtin"
    page.id("models").send_keys("other")
    page.until(lambda: "other" in page.id("facts").get_attribute("title"), "the other's facts are shown")
    page.answer_to("And you?")
    assert page.body()["model"] == "other"
    page.picture("models")
    page.size(320, 600, mobile=True)
    nothing_sticks_out(page)
    page.picture("models-narrow")
    page.size(1280, 800)
    # It is kept.
    page.browser.get(page.address)
    page.until(lambda: "other" in page.id("facts").get_attribute("title"), "the other is still chosen")


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
        sends_and_streams, gauge, goes_on, stops, edits, regenerates, goes_on_with_an_answer, settings, system_prompts, keyboard,
        suggestions, markdown, dark_and_light, a_phone, a_selection_survives, html_never_runs,
        copies_without_a_secure_context, files, progress, errors, conversations, two_tabs, the_first_version_is_migrated,
        one_model_is_no_choice, nobody_else_is_asked,
    ))
    for address in sys.argv[3:]:
        page = Page(address.rstrip("/"), folder)
        page.open()
        run(page, (a_choice_of_models,))


main()
