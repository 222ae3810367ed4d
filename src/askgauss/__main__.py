"""``python -m askgauss``: the command line, where the script is not on the path."""

from askgauss.cli import main

if __name__ == "__main__":
    main()
