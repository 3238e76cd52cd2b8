"""The DP supervisor: one Pod, one server per local data-parallel rank, and a rule for when all of them must go."""
