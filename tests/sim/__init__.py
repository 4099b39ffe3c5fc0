"""One seeded world: real machines at both ends, a faulty pipe, a faulty disk, crashes."""
