"""Notebooks as a reader sees them: pages in a browser."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyter import Page
from nbconvert import HTMLExporter

WIDTH, MOST_HEIGHT = 1100, 12_000


def programs() -> tuple[str, str] | None:
    """Where Chromium and its driver are, or None if one of them is missing."""
    found = (shutil.which("chromium"), shutil.which("chromedriver"))
    return found if all(found) else None


def write_html(page: Page, path: Path) -> None:
    """Renders a notebook as Jupyter does, in one file that fetches nothing from elsewhere."""
    exporter = HTMLExporter(mathjax_url="", require_js_url="", jquery_url="", mermaid_js_url="")
    html, _ = exporter.from_notebook_node(page.notebook)
    path.write_text(html)


@contextmanager
def browser(profile: Path) -> Iterator[Any]:
    """A headless Chromium with a new profile, as selenium drives it."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    chromium, driver = programs()
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("headless=new", "no-sandbox", "disable-gpu", f"user-data-dir={profile}"):
        options.add_argument(f"--{argument}")
    options.add_argument(f"--window-size={WIDTH},1000")
    window = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield window
    finally:
        window.quit()


def take_picture(window: Any, path: Path) -> None:
    """Keeps a picture of the whole page, also of what is below the window's edge."""
    height = window.execute_script("return document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": min(height, MOST_HEIGHT), "scale": 1}
    shot = window.execute_cdp_cmd(
        "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
    )
    path.write_bytes(base64.b64decode(shot["data"]))
