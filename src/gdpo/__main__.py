"""Makes `python -m gdpo` work, which is what `accelerate launch -m gdpo` starts."""

from gdpo.cli import main

if __name__ == "__main__":
    main()
