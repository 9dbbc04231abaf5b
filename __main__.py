"""`python -m gnomon` and the console script `gnomon`."""


def main() -> None:
    """Run the command line; imported here so that `import gnomon` stays free of it."""
    from gnomon.runtime.commands import main as run

    run()


if __name__ == "__main__":
    main()
