"""A script of NeMo-RL with gdpo installed in it.

python -m gdpo.integrations.nemo_rl examples/run_grpo.py --config my.yaml
"""

import runpy
import sys
from pathlib import Path

from gdpo.integrations.nemo_rl._install import install


def main() -> None:
    """Install, then run the script that is named first with the arguments that follow."""
    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m gdpo.integrations.nemo_rl SCRIPT [its arguments]")
    sys.argv = sys.argv[1:]
    script = Path(sys.argv[0])
    sys.path[0] = str(script.parent.absolute())
    if not install():
        raise SystemExit("gdpo could not be installed in this NeMo-RL, and nothing was started")
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
