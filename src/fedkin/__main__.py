"""`python -m fedkin` is the command `fedkin`."""

from fedkin.cli import main

if __name__ == "__main__":
    main()
