"""The site as a whole: the demo, whose data touches several apps, and commands that know all of them."""
