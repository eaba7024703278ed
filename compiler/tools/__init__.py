"""What looks at a compilation from outside: search for faults, checks of rules, measurements."""
