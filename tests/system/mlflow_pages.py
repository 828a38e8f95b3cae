"""What MLflow's own pages show of a run."""

from __future__ import annotations

import mlflow

from browser import Browser

ASSISTANT = '[data-component-id="mlflow.assistant.chat_panel.close"]'
SECTION = '[data-testid="experiment-view-compare-runs-section-header"]'


class RunPages:
    """The pages of one run; each method opens one, waits until it shows something, and pictures it.

    Args:
        browser: To look with.
        url: Of the server.
        run_id: The run's.
        pictures: How the pictures' names begin.
    """

    def __init__(self, browser: Browser, url: str, run_id: str, pictures: str = "") -> None:
        run = mlflow.MlflowClient(tracking_uri=url).get_run(run_id)
        self._browser = browser
        self._page = f"{url}/#/experiments/{run.info.experiment_id}/runs/{run_id}"
        self._pictures = pictures

    def overview(self, *words: str) -> str:
        """The text of the run's first page, once it shows all of ``words``."""
        self._open("")
        text = self._browser.wait_for(*words)
        self._picture("overview")
        return text

    def metric_charts(self, *names: str) -> dict[str, list[float]]:
        """The values that the charts of these metrics have drawn."""
        return self._charts("model-metrics", names, prefix="")

    def system_charts(self, *names: str) -> dict[str, list[float]]:
        """The same of a host's metrics."""
        return self._charts("system-metrics", names, prefix="system/")

    def artifact(self, path: str, *, in_frame: bool = False) -> str:
        """The text that is shown of a file.

        Args:
            path: The artifact's.
            in_frame: Whether it is a page, which MLflow shows in a frame.
        """
        self._open(f"/artifacts/{path}")
        self._browser.wait_for(path.rpartition("/")[2])
        if in_frame:
            self._browser.wait_until(lambda: self._browser.count("iframe"), lambda: "a frame")
            text = self._browser.inside_frame("iframe")
        else:
            self._browser.wait_until(lambda: self._browser.read("pre, code"), lambda: path)
            text = "\n".join(self._browser.read("pre, code"))
        self._picture(f"artifact-{path.replace('/', '-')}")
        return text

    def _charts(self, page: str, names: tuple[str, ...], prefix: str) -> dict[str, list[float]]:
        self._open(f"/{page}")
        wanted = {prefix + name for name in names}

        def are_drawn() -> bool:
            # What has no folder of its own in its name comes last, and is drawn when it is seen.
            self._browser.scroll_to_last(SECTION)
            return wanted <= self._browser.charts().keys()

        self._browser.wait_until(are_drawn, lambda: f"charts of {wanted}")
        self._picture(page)
        return {
            name.removeprefix(prefix): values
            for name, values in self._browser.charts().items()
            if name in wanted
        }

    def _open(self, tail: str) -> None:
        self._browser.open(self._page + tail)
        self._browser.wait_for("Overview", "Artifacts")
        # It opens by itself and takes a quarter of the window.
        self._browser.click_if_there(ASSISTANT)

    def _picture(self, name: str) -> None:
        self._browser.picture(self._pictures + name)
