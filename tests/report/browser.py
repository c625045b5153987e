"""A headless Chromium, driven over its DevTools pipe: no package and no open port needed."""

import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
]
START = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""A shell does not take every number of a file; Chromium's pipe is 3 and 4."""

ANSWER_S = 60


def find_chromium():
    """GDPO_CHROMIUM, or the first on the path; None: there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = (shutil.which(name) for name in (os.environ.get("GDPO_CHROMIUM"), *names) if name)
    return next((path for path in found if path), None)


class Page:
    """One tab. What the page complains of, and what it asks the network for, is kept."""

    def __init__(self, to_browser, from_browser):
        self._to, self._from = to_browser, from_browser
        self._ids, self._buffer = itertools.count(1), b""
        self._session = None
        self.complaints, self.requests, self.loaded = [], [], False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _read(self):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], ANSWER_S)
            assert ready, f"Chromium said nothing for {ANSWER_S} s"
            piece = os.read(self._from, 1 << 20)
            assert piece, "Chromium ended"
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, event, params):
        if event == "Page.loadEventFired":
            self.loaded = True
        elif event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"]["text"])
        elif event == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif event == "Page.javascriptDialogOpening":
            self.complaints.append(f"dialog: {params['message']}")

    def media(self, kind="screen", colours="light"):
        features = [{"name": "prefers-color-scheme", "value": colours}]
        self.call("Emulation.setEmulatedMedia", media=kind, features=features)

    def open(self, file, fragment="", width=1280):
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.media()
        self.complaints.clear()
        self.requests.clear()
        self.loaded = False
        self.call("Page.navigate", url=Path(file).absolute().as_uri() + fragment)
        while not self.loaded:
            self._read()

    def ask(self, expression):
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def open_wholly(self, file, width):
        """Open a page with all its rollouts. Nothing may run, be asked for or stick out."""
        self.open(file, width=width)
        while not self.ask("document.querySelector('#more').hidden"):
            self.ask("document.querySelector('#more').click()")
        self.ask("document.querySelectorAll('tr.row button').forEach(b => b.click())")
        assert self.ask("window.broken") is None
        assert self.ask("document.querySelectorAll('script, img, link, base').length") == 2
        assert self.complaints == []
        assert self.requests == [file.as_uri()]
        assert self.ask("document.documentElement.scrollWidth <= innerWidth")

    def press(self, key, text=""):
        codes = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35}
        event = {"key": key, "windowsVirtualKeyCode": codes[key], "text": text}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def point(self, selector, share=0.5):
        """Move the mouse over an element, so far from its left."""
        box = f"document.querySelector({json.dumps(selector)})"
        self.ask(f"{box}.scrollIntoView({{block: 'center'}})")
        x, y, width, height = self.ask(
            f"(({{x,y,width,height}}) => [x,y,width,height])({box}.getBoundingClientRect())"
        )
        place = {"x": x + share * width, "y": y + height / 2}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **place)


@contextmanager
def chromium(program):
    """A page of a browser with an empty profile, which ends with the block."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        read_end, to_browser = os.pipe()
        from_browser, write_end = os.pipe()
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read_end, write_end)]
        start = [sys.executable, "-c", START, *map(str, high)]
        command = [*start, program, *FLAGS, f"--user-data-dir={profile}"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, pass_fds=high, **quiet)
        for end in (read_end, write_end, *high):
            os.close(end)
        try:
            page = Page(to_browser, from_browser)
            yield page
        finally:
            os.close(to_browser)  # Chromium ends when its pipe does
            os.close(from_browser)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
