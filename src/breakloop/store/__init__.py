"""State: operations as data (`ops`), who carries them out (`store`), and the in-process store (`memory`)."""
