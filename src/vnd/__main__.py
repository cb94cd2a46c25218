"""`python -m vnd COMMAND`, for launchers such as torchrun."""

from vnd.cli import main

if __name__ == "__main__":
    main()
