"""What every app of the site uses, and what knows none of them."""
