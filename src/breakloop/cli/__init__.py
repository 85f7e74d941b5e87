"""The command line, one file a command. `main` finds them by name and loads only the one that is called."""
