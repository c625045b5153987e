"""Make docs/images/analyze_example.png: the top of the page that `gdpo analyze --example` writes.

Needs chromium (`apt-get install chromium`). The picture is the page in its light theme, cropped
below the table.

    python -m benchmarks.screenshot_example
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from gdpo.analysis import EXAMPLE

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "analyze_example.png"
_WIDTH, _HEIGHT = 960, 442
"""Size of the window in CSS pixels: the verdict and the table fit."""
_SCALE = 1.25
"""Pixels of the picture per CSS pixel."""


def main() -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("chromium is missing: install it, for example with apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "analysis.html"
        # A copy, so that the page shows a short path.
        shutil.copy(EXAMPLE, Path(folder) / "rollouts.parquet")
        command = ["-m", "gdpo", "analyze", "rollouts.parquet", "--output", str(page)]
        subprocess.run([sys.executable, *command], check=True, cwd=folder)
        subprocess.run(
            [
                browser,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--disable-background-networking",
                "--hide-scrollbars",
                f"--user-data-dir={folder}/profile",
                f"--force-device-scale-factor={_SCALE}",
                f"--window-size={_WIDTH},{_HEIGHT}",
                f"--screenshot={PICTURE}",
                page.as_uri(),
            ],
            check=True,
            stderr=subprocess.DEVNULL,
        )


if __name__ == "__main__":
    main()
