"""``python -m nacre``, for torchrun."""

from nacre.cli import main

if __name__ == "__main__":
    main()
