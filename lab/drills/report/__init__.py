"""What a person reads of a drill: its lines while it runs, its page, its picture."""
