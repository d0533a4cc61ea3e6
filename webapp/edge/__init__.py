"""The outside of the web process: what a request must pass before a page or an API sees it."""
