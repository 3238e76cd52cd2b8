"""What is seen of a drill from outside the Controller while it runs, and the bundle it is kept in."""
