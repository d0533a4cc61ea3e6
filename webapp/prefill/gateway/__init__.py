"""The way of a prompt through the site: from the client's request over a kept line to a desk, and back."""
