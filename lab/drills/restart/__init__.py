"""The restart tables: something of ours, or a whole Pod, goes in the middle of a round; each cell says how that must end."""
