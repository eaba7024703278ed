"""From te function to te function."""
