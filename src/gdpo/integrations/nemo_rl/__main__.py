"""Runs a NeMo-RL script with gdpo's estimators and environment.

python -m gdpo.integrations.nemo_rl examples/run_grpo.py --config my.yaml
"""

import runpy
import sys
from pathlib import Path

from gdpo.integrations.nemo_rl._install import install


def main() -> None:
    """Call `install()`, then run the script (first argument) with the remaining arguments."""
    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m gdpo.integrations.nemo_rl SCRIPT [ARGUMENTS OF SCRIPT]")
    sys.argv = sys.argv[1:]
    script = Path(sys.argv[0])
    sys.path[0] = str(script.parent.absolute())
    if not install():
        raise SystemExit(
            "the script was not started: gdpo does not support this version of NeMo-RL"
        )
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
