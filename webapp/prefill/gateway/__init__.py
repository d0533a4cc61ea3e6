"""The path of a prompt through the site: from the client to a prefill coordinator, and back."""
