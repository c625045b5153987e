"""Runs the command line for `python -m gdpo` and `accelerate launch -m gdpo`."""

from gdpo.cli import main

if __name__ == "__main__":
    main()
