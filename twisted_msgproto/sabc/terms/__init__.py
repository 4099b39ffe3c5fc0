"""What sABC's machines and their callers talk about, as data: :mod:`.events` and :mod:`.tables`."""
