"""A headless Chromium that a test looks at pages with."""

from __future__ import annotations

import base64
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

WAIT_SECONDS = 240.0
MOST_HEIGHT = 12_000  # Chromium draws no larger picture.


def programs() -> tuple[str, str] | None:
    """Where Chromium and its driver are, or None if one of them is missing."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    return (chromium, driver) if chromium and driver else None


class Browser:
    """One window, with a profile of its own that is gone when it is closed.

    Args:
        artifacts: Where pictures are kept.
        width: Of the window, in pixels.
        height: Of the window, in pixels. By default so large that pages draw all that they have.
    """

    def __init__(self, artifacts: Path, *, width: int = 1700, height: int = 2600) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        chromium, driver = programs()
        self._artifacts = artifacts
        self._profile = tempfile.mkdtemp(prefix="sparkdl-chromium-")
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for argument in (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-extensions",
            "--disable-background-networking",
            "--no-first-run",
            f"--user-data-dir={self._profile}",
            f"--window-size={width},{height}",
        ):
            options.add_argument(argument)
        self._service = Service(driver, log_output=subprocess.DEVNULL)
        self._window = webdriver.Chrome(options=options, service=self._service)

    def close(self) -> None:
        """Ends Chromium and all its processes."""
        family = psutil.Process(self._service.process.pid).children(recursive=True)
        self._window.quit()
        for process in psutil.wait_procs(family, timeout=10)[1]:
            process.kill()
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, url: str) -> None:
        """Goes to a page. Where only what is after the ``#`` differs, that is a new page too."""
        self._window.get("about:blank")
        self._window.get(url)

    def resize(self, width: int, height: int) -> None:
        """Makes the window smaller or larger."""
        self._window.set_window_size(width, height)

    def text(self) -> str:
        """What a reader of the page sees, scrolled out or not."""
        return str(self.run("return document.body.innerText"))

    def wait_for(self, *words: str) -> str:
        """Waits until the page shows all of ``words``. Returns the page's text."""
        self.wait_until(lambda: all(word in self.text() for word in words), lambda: repr(words))
        return self.text()

    def wait_until(self, holds: Callable[[], Any], what: Callable[[], str]) -> None:
        """Waits until something holds; ``what`` says what that was, for the error."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not holds():
            if time.monotonic() > deadline:
                self.picture("not-shown")
                raise AssertionError(
                    f"{self._window.current_url} does not show {what()}; it shows:\n{self.text()}"
                )
            time.sleep(0.2)

    def count(self, selector: str) -> int:
        """How many elements fit a CSS selector."""
        return int(self.run("return document.querySelectorAll(arguments[0]).length", selector))

    def click_if_there(self, selector: str) -> None:
        """Clicks on the first element that fits a CSS selector, if there is one."""
        self.run("document.querySelector(arguments[0])?.click()", selector)

    def scroll_to_last(self, selector: str) -> None:
        """Scrolls so that the last element that fits a CSS selector is seen."""
        self.run("[...document.querySelectorAll(arguments[0])].at(-1)?.scrollIntoView()", selector)

    def charts(self) -> dict[str, list[float]]:
        """The values that each chart with a drawn line shows, by the metric's name."""
        found = self.run(
            """return [...document.querySelectorAll('.js-plotly-plot')]
            .filter(one => one.querySelector('.scatterlayer path'))
            .map(one => [one.data[0].metricKey, one.data[0].y])"""
        )
        return {name: [float(value) for value in values] for name, values in found}

    def read(self, selector: str) -> list[str]:
        """The texts of the elements that fit a CSS selector."""
        return list(
            self.run(
                "return [...document.querySelectorAll(arguments[0])].map(one => one.textContent)",
                selector,
            )
        )

    def inside_frame(self, selector: str) -> str:
        """The text of the page in a frame."""
        from selenium.webdriver.common.by import By

        frame = self._window.find_element(By.CSS_SELECTOR, selector)
        self._window.switch_to.frame(frame)
        try:
            return self.text()
        finally:
            self._window.switch_to.default_content()

    def picture(self, name: str) -> Path:
        """Keeps a picture of the window."""
        path = self._artifacts / f"{name}.png"
        self._window.save_screenshot(str(path))
        return path

    def whole_page(self, name: str) -> Path:
        """Keeps a picture of the whole page, also of what is below the window's edge."""
        width = self.run("return document.documentElement.clientWidth")
        height = min(self.run("return document.documentElement.scrollHeight"), MOST_HEIGHT)
        shot = self._window.execute_cdp_cmd(
            "Page.captureScreenshot",
            {
                "captureBeyondViewport": True,
                "clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1},
            },
        )
        path = self._artifacts / f"{name}.png"
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script in the page returns."""
        return self._window.execute_script(script, *arguments)
