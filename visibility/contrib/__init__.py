"""What needs a package that is optional."""
