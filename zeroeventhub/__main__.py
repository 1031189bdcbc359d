"""Run the command line by `python -m zeroeventhub`."""

from zeroeventhub.cli import main

if __name__ == "__main__":
    main()
