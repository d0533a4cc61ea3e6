"""The demo: what it is made of touches several apps."""
