"""A case file, read and checked: TOML in, a frozen `Case` out."""
