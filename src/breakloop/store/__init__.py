"""State: operations as data and the store interfaces (`ops`), the in-process store (`memory`), Redis (`redis`), and
files.
"""
